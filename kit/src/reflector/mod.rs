//! A list and a watch of one type of object as a stream of events, in place of kube's `watcher` wherever the API is a
//! remote server: after a watch that failed it verifies that its resourceVersion is still part of the server's history.
//!
//! A store that was restored from a snapshot has lower revisions than its clients have seen. A kube-apiserver answers a
//! watch from such a revision with silence, bookmarks included, until its own revisions have passed it, and what
//! happened before that is never reported. client-go's reflectors wait just so, and the documentation says to restart
//! all nodes. The revision of a server can only be queried by a list, so nothing is queried after a watch that ended
//! regularly: a restored store looks like a server that ends a watch early, breaks it off or leaves it silent. Small
//! selections are listed again then, which costs as much as the query; of large ones the revision is queried, with at
//! most one object, and they are listed again where it is behind ours.
//!
//! Imports nothing of ours.

use std::{collections::VecDeque, fmt::Debug, io, time::Duration};

use futures::{
    AsyncBufReadExt as _, Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use http::{HeaderValue, header::ACCEPT_ENCODING};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{ListParams, VersionMatch, WatchEvent, WatchParams},
    core::{Request, Status},
    runtime::watcher::{Config, Error, Event, InitialListStrategy, ListSemantic},
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, Error as _},
};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

/// The size of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The objects of one node, or a single object.
    Few,
    /// All objects of a cluster.
    Many,
}

/// The timeout of a watch unless its configuration has one; kube's own.
const WATCH_TIMEOUT: Duration = Duration::from_secs(290);
/// The annotation of the bookmark that ends a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// The reason of the error with which a server ends a watch when an object that it cannot read was deleted
/// (`StatusReasonStoreReadError`).
const STORE_READ_ERROR: &str = "StorageReadError";
/// How much faster a server's clock may be.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(5);

/// The objects that `config` selects, followed by their changes. After an error, the failed request is repeated when
/// the next event is polled; the caller adds a back-off. The stream never ends.
///
/// With `InitialListStrategy::StreamingList` the list is the start of the watch, one request for both (client-go's
/// WatchList, which kube-apiserver has by default since 1.32). Where a server rejects it, lists are used from then on.
pub fn reflect<K>(api: Api<K>, config: Config, extent: Extent) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let reflector = Reflector { api, config, extent, in_one_page: false, age: Age::Any };
    stream::unfold((reflector, State::Unknown), async |(mut reflector, mut state)| {
        loop {
            let (event, next) = reflector.step(state).await;
            state = next;
            if let Some(event) = event {
                return Some((event, (reflector, state)));
            }
        }
    })
}

struct Reflector<K> {
    api: Api<K>,
    config: Config,
    extent: Extent,
    /// The next list has no pages: those of the last one took longer than the server keeps its history.
    in_one_page: bool,
    /// How old the next list may be, where the configuration leaves that to the server.
    age: Age,
}

/// How old a list may be that comes from a server's cache. client-go's `relistResourceVersion`.
enum Age {
    /// Nothing is known yet.
    Any,
    /// Of what is known already nothing is taken back, whatever server answers.
    NotOlderThan(String),
    /// The server's cache has not come so far, or its history is another one.
    Latest,
}

enum State<K> {
    /// Next: a list.
    Unknown,
    /// A list in progress.
    Listing {
        objects: VecDeque<K>,
        more: Option<String>,
        version: String,
    },
    /// A watch that starts with a list, which ends with a bookmark.
    Streaming {
        since: Instant,
        events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
    },
    /// Everything up to a revision is known. Next: a watch.
    Known {
        version: String,
        broken: bool,
    },
    Watching {
        version: String,
        since: Instant,
        events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
    },
}

type Step<K> = (Option<Result<Event<K>, Error>>, State<K>);

impl<K> Reflector<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn step(&mut self, state: State<K>) -> Step<K> {
        match state {
            State::Unknown if self.config.initial_list_strategy == InitialListStrategy::StreamingList => {
                self.list_by_watch().await
            }
            State::Streaming { since, mut events } => {
                let event = timeout_at(since + self.watch_timeout() + MAX_CLOCK_SKEW, events.next()).await;
                on_initial_event(event.unwrap_or_default(), since, events)
            }
            State::Unknown => {
                let (result, next) = self.list(None).await;
                (Some(result.map(|()| Event::Init)), next)
            }
            State::Listing { mut objects, more, version } => match (objects.pop_front(), &more) {
                (Some(object), _) => (Some(Ok(Event::InitApply(object))), State::Listing { objects, more, version }),
                (None, None) => (Some(Ok(Event::InitDone)), State::Known { version, broken: false }),
                (None, Some(_)) => {
                    let (result, next) = self.list(more).await;
                    (result.err().map(Err), next)
                }
            },
            State::Known { version, broken: true } => match self.has_revision(&version).await {
                Ok(true) => self.watch(version).await,
                Ok(false) => {
                    self.age = Age::Latest;
                    (None, State::Unknown)
                }
                Err(error) => (Some(Err(Error::WatchStartFailed(error))), State::Known { version, broken: true }),
            },
            State::Known { version, broken: false } => self.watch(version).await,
            State::Watching { version, since, mut events } => {
                // A watch that the server does not end is ended here.
                let result = timeout_at(since + self.watch_timeout() + MAX_CLOCK_SKEW, events.next()).await;
                self.on_event(result.unwrap_or_default(), version, since, events)
            }
        }
    }

    /// Starts a watch that begins with all objects.
    async fn list_by_watch(&mut self) -> Step<K> {
        let params = WatchParams { send_initial_events: true, bookmarks: true, ..self.watch_params() };
        // Without a revision the list is consistent with the store.
        match self.events(&params, "").await {
            Ok(events) => (Some(Ok(Event::Init)), State::Streaming { since: Instant::now(), events }),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                tracing::debug!(what = %K::plural(&()), error = %status.message, "the API has no streaming lists; listing instead");
                self.config.initial_list_strategy = InitialListStrategy::ListWatch;
                (None, State::Unknown)
            }
            Err(error) => (Some(Err(Error::InitialListFailed(error))), State::Unknown),
        }
    }

    /// A page of the list.
    async fn list(&mut self, more: Option<String>) -> (Result<(), Error>, State<K>) {
        let goes_on = more.is_some();
        let list = match self.api.list(&self.page_params(more)).await {
            Ok(list) => list,
            Err(error) => {
                if goes_on {
                    // As client-go's pager: the pages of another list would take as long.
                    self.in_one_page |= is_gone(&error);
                } else if is_gone(&error) || is_timeout(&error) {
                    self.age = Age::Latest;
                }
                return (Err(Error::InitialListFailed(error)), State::Unknown);
            }
        };
        let more = list.metadata.continue_.filter(|token| !token.is_empty());
        self.in_one_page &= more.is_some();
        let version = list.metadata.resource_version.unwrap_or_default();
        if version.is_empty() {
            return (Err(Error::NoResourceVersion), State::Unknown);
        }
        (Ok(()), State::Listing { objects: list.items.into(), more, version })
    }

    fn list_params(&self) -> ListParams {
        ListParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            limit: self.config.page_size,
            ..ListParams::default()
        }
    }

    /// Of a page of a list.
    fn page_params(&self, more: Option<String>) -> ListParams {
        let params = self.list_params();
        if more.is_some() {
            return ListParams { continue_token: more, ..params };
        }
        let limit = params.limit.filter(|_| !self.in_one_page);
        // With a limit, clients and servers go past the cache.
        let (version, limit) = match (&self.config.list_semantic, &self.age) {
            (ListSemantic::Any, Age::Any) => (Some("0".to_owned()), None),
            (ListSemantic::Any, Age::NotOlderThan(version)) => (Some(version.clone()), None),
            _ => (None, limit),
        };
        ListParams {
            version_match: version.as_ref().map(|_| VersionMatch::NotOlderThan),
            resource_version: version,
            limit,
            ..params
        }
    }

    /// Whether the server has our revision: a store that was restored from a snapshot has not reached it again. One
    /// without a write since is exactly there, after a bookmark at the end of the watch.
    async fn has_revision(&self, version: &str) -> kube::Result<bool> {
        // From the store, not from a watch cache that may be behind.
        let last = ListParams { limit: Some(1), ..self.list_params() };
        let theirs = self.api.list_metadata(&last).await?.metadata.resource_version.unwrap_or_default();
        let has = reaches(&theirs, version);
        if !has {
            tracing::warn!(
                what = %K::plural(&()), ours = version, theirs,
                "the API is at an older revision than this watch, as after a restored snapshot; listing again"
            );
        }
        Ok(has)
    }

    fn watch_params(&self) -> WatchParams {
        WatchParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            timeout: self.config.timeout,
            bookmarks: self.config.bookmarks,
            send_initial_events: false,
        }
    }

    async fn watch(&mut self, version: String) -> Step<K> {
        match self.events(&self.watch_params(), &version).await {
            Ok(events) => (None, State::Watching { version, since: Instant::now(), events }),
            Err(error) => {
                let next = match &error {
                    error if is_gone(error) => self.list_anew(version),
                    // A server that has too much to do says nothing of its history, and a list would be more to do.
                    kube::Error::Api(status) if status.code == 429 => State::Known { version, broken: false },
                    _ => self.after_failure(version),
                };
                (Some(Err(Error::WatchStartFailed(error))), next)
            }
        }
    }

    /// As kube's, whose decoder is another instantiation for each type, for lines whose object precedes the event's
    /// type.
    async fn events(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> kube::Result<BoxStream<'static, kube::Result<WatchEvent<K>>>> {
        let built = Request::new(self.api.resource_url()).watch(params, version);
        let mut request = built.map_err(kube::Error::BuildRequest)?;
        // kube-apiserver 1.37 compresses each event by itself, of which only the first would be decompressed.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let lines = self.api.clone().into_client().request_stream(request).await?.lines();
        Ok(lines.filter_map(async |line| parse_line(line)).boxed())
    }

    /// The step after an event of a watch; `None` is its end.
    fn on_event(
        &mut self,
        result: Option<kube::Result<WatchEvent<K>>>,
        version: String,
        since: Instant,
        events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
    ) -> Step<K> {
        let object = |object: K, event: fn(K) -> Event<K>, events| match object.resource_version() {
            Some(version) if !version.is_empty() => {
                (Some(Ok(event(object))), State::Watching { version, since, events })
            }
            _ => (Some(Err(Error::NoResourceVersion)), State::Unknown),
        };
        match result {
            Some(Ok(WatchEvent::Added(new) | WatchEvent::Modified(new))) => object(new, Event::Apply, events),
            Some(Ok(WatchEvent::Deleted(old))) => object(old, Event::Delete, events),
            Some(Ok(WatchEvent::Bookmark(mark))) => {
                (None, State::Watching { version: mark.metadata.resource_version, since, events })
            }
            Some(Ok(WatchEvent::Error(status))) => {
                // Deleted by force, since the server could not read it: no event reports it, only a new list.
                let is_unreadable = status.reason == STORE_READ_ERROR;
                let is_lost = status.code == 410 || is_unreadable;
                let next = if is_lost { self.list_anew(version) } else { self.after_failure(version) };
                (Some(Err(Error::WatchError(status.boxed()))), next)
            }
            Some(Err(error)) => {
                let next = match &error {
                    error if is_gone(error) => self.list_anew(version),
                    // An object that cannot be decoded; those after it can.
                    kube::Error::SerdeError(_) => State::Watching { version, since, events },
                    _ => self.after_failure(version),
                };
                (Some(Err(Error::WatchFailed(error))), next)
            }
            None if since.elapsed() + MAX_CLOCK_SKEW < self.watch_timeout() => (None, self.after_failure(version)),
            None => (None, State::Known { version, broken: false }),
        }
    }

    /// The server may have another history than ours.
    fn after_failure(&mut self, version: String) -> State<K> {
        match self.extent {
            Extent::Few => self.list_anew(version),
            Extent::Many => State::Known { version, broken: true },
        }
    }

    /// Everything up to a revision is known, and the next list is not older.
    fn list_anew(&mut self, version: String) -> State<K> {
        self.age = Age::NotOlderThan(version);
        State::Unknown
    }

    fn watch_timeout(&self) -> Duration {
        self.config.timeout.map_or(WATCH_TIMEOUT, |seconds| Duration::from_secs(seconds.into()))
    }
}

/// The step after an event of a streaming list; `None` is the end of the watch.
fn on_initial_event<K>(
    event: Option<kube::Result<WatchEvent<K>>>,
    since: Instant,
    events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
) -> Step<K> {
    match event {
        Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
            (Some(Ok(Event::InitApply(object))), State::Streaming { since, events })
        }
        Some(Ok(WatchEvent::Bookmark(mark))) if mark.metadata.annotations.contains_key(INITIAL_EVENTS_END) => {
            (Some(Ok(Event::InitDone)), State::Watching { version: mark.metadata.resource_version, since, events })
        }
        Some(Ok(WatchEvent::Bookmark(_))) => (None, State::Streaming { since, events }),
        Some(Ok(WatchEvent::Error(status))) => (Some(Err(Error::WatchError(status.boxed()))), State::Unknown),
        // An object that cannot be decoded; those after it can.
        Some(Err(kube::Error::SerdeError(error))) => {
            (Some(Err(Error::WatchFailed(kube::Error::SerdeError(error)))), State::Streaming { since, events })
        }
        Some(Err(error)) => (Some(Err(Error::InitialListFailed(error))), State::Unknown),
        // A list contains no deletions, and does not end without its bookmark.
        Some(Ok(WatchEvent::Deleted(_))) | None => {
            let error = kube::Error::ReadEvents(io::ErrorKind::UnexpectedEof.into());
            (Some(Err(Error::InitialListFailed(error))), State::Unknown)
        }
    }
}

/// A line of a watch.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    what: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The event of a line; `None` for a truncated one, after which the stream ends.
fn parse_line<K: DeserializeOwned>(line: io::Result<String>) -> Option<kube::Result<WatchEvent<K>>> {
    let line = match line {
        Ok(line) => line,
        Err(error) => return Some(Err(kube::Error::ReadEvents(error))),
    };
    match event_of(&line) {
        Err(error) if error.is_eof() => None,
        Err(error) => Some(Err(match serde_json::from_str::<Status>(&line) {
            // All fields of a status are optional: one without a code is another object.
            Ok(status) if status.code != 0 => kube::Error::Api(status.boxed()),
            _ => kube::Error::SerdeError(error),
        })),
        Ok(event) => Some(Ok(event)),
    }
}

fn event_of<K: DeserializeOwned>(line: &str) -> serde_json::Result<WatchEvent<K>> {
    if let Some((what, object)) = as_servers_write(line)
        && let Ok(event) = decode(what, object)
    {
        return Ok(event);
    }
    let Line { what, object } = serde_json::from_str(line)?;
    decode(what, object.get())
}

/// The type and the object of a line in the one form that servers write: then the object is not skipped before it is decoded.
/// If it was another form after all, what is taken for the object is no JSON.
fn as_servers_write(line: &str) -> Option<(&str, &str)> {
    let (what, rest) = line.strip_prefix(r#"{"type":""#)?.split_once('"')?;
    Some((what, rest.strip_prefix(r#","object":"#)?.strip_suffix('}')?))
}

fn decode<K: DeserializeOwned>(what: &str, text: &str) -> serde_json::Result<WatchEvent<K>> {
    Ok(match what {
        "ADDED" => WatchEvent::Added(serde_json::from_str(text)?),
        "MODIFIED" => WatchEvent::Modified(serde_json::from_str(text)?),
        "DELETED" => WatchEvent::Deleted(serde_json::from_str(text)?),
        "BOOKMARK" => WatchEvent::Bookmark(serde_json::from_str(text)?),
        "ERROR" => WatchEvent::Error(serde_json::from_str(text)?),
        other => return Err(serde_json::Error::custom(format!("{other:?} is no type of a watch event"))),
    })
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

/// As a server says that its cache has not come so far as is asked for.
fn is_timeout(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 504)
}

/// Whether a revision equals or follows another. Both are numbers of etcd; anything else is not comparable.
fn reaches(one: &str, other: &str) -> bool {
    matches!((one.parse::<u64>(), other.parse::<u64>()), (Ok(one), Ok(other)) if one >= other)
}

#[cfg(test)]
mod tests;
