//! A list and a watch of one kind of object as a stream of events, as kube's `watcher`, which this stands for wherever the
//! API is a server of its own: after a watch that broke off it makes sure that what is known is still of the server's
//! history.
//!
//! A store that was restored from a snapshot has lower revisions than its clients have seen. A kube-apiserver answers a watch
//! from such a revision with silence, bookmarks included, until its own have grown past it; and what happened before that is
//! never told. Upstream's reflectors wait just so, and its handbook says to restart all nodes. The server's revision can
//! only be asked for by a list, so nobody asks after a watch that ended as agreed: what the server ends early, breaks off or
//! leaves silent is what a restored store looks like from here. What is few is listed anew then, which costs what asking
//! would; of what is many the revision is asked for, with one object at most, and it is listed anew where that is behind ours.
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

/// How many objects a selection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Those of one node, or one by its name.
    Few,
    /// All of a cluster's.
    Many,
}

/// How long a watch is asked for, unless its configuration says otherwise; kube's own.
const WATCH: Duration = Duration::from_secs(290);
/// The annotation of the bookmark that ends a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// A server's clock may be this much faster.
const EARLY: Duration = Duration::from_secs(5);

/// The objects that `config` selects: all of them, and then what happens to them. An error is told and what failed is done
/// again when the next event is asked for; the one who asks waits before. The stream has no end.
///
/// With `InitialListStrategy::StreamingList` the list is the beginning of the watch, one request for both (client-go's
/// WatchList, which kube-apiserver has by default since 1.32). A server that refuses it is asked for a list from then on.
pub fn reflect<K>(api: Api<K>, config: Config, extent: Extent) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let reflector = Reflector { api, config, extent };
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
}

enum State<K> {
    /// A list comes next.
    Unknown,
    /// A list is under way.
    Listing {
        objects: VecDeque<K>,
        more: Option<String>,
        version: String,
    },
    /// A watch that begins with a list is under way; the list ends with a bookmark.
    Streaming {
        since: Instant,
        events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
    },
    /// All is known up to a revision; a watch comes next.
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
                let event = timeout_at(since + self.time() + EARLY, events.next()).await;
                initial(event.unwrap_or_default(), since, events)
            }
            State::Unknown => {
                let (told, next) = self.list(None).await;
                (Some(told.map(|()| Event::Init)), next)
            }
            State::Listing { mut objects, more, version } => match (objects.pop_front(), &more) {
                (Some(object), _) => (Some(Ok(Event::InitApply(object))), State::Listing { objects, more, version }),
                (None, None) => (Some(Ok(Event::InitDone)), State::Known { version, broken: false }),
                (None, Some(_)) => {
                    let (told, next) = self.list(more).await;
                    (told.err().map(Err), next)
                }
            },
            State::Known { version, broken: true } => match self.has_revision(&version).await {
                Ok(true) => self.watch(version).await,
                Ok(false) => (None, State::Unknown),
                Err(error) => (Some(Err(Error::WatchStartFailed(error))), State::Known { version, broken: true }),
            },
            State::Known { version, broken: false } => self.watch(version).await,
            State::Watching { version, since, mut events } => {
                // One that its server has forgotten to end is ended here.
                let told = timeout_at(since + self.time() + EARLY, events.next()).await;
                self.take(told.unwrap_or_default(), version, since, events)
            }
        }
    }

    /// Begins a watch that tells all objects first.
    async fn list_by_watch(&mut self) -> Step<K> {
        let params = WatchParams { send_initial_events: true, bookmarks: true, ..self.watch_params() };
        // Without a revision the list is as new as the store.
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
    async fn list(&self, more: Option<String>) -> (Result<(), Error>, State<K>) {
        let list = match self.api.list(&ListParams { continue_token: more, ..self.list_params() }).await {
            Ok(list) => list,
            Err(error) => return (Err(Error::InitialListFailed(error)), State::Unknown),
        };
        let more = list.metadata.continue_.filter(|token| !token.is_empty());
        let version = list.metadata.resource_version.unwrap_or_default();
        if version.is_empty() {
            return (Err(Error::NoResourceVersion), State::Unknown);
        }
        (Ok(()), State::Listing { objects: list.items.into(), more, version })
    }

    fn list_params(&self) -> ListParams {
        let any = matches!(self.config.list_semantic, ListSemantic::Any);
        ListParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            resource_version: any.then(|| "0".to_owned()),
            version_match: any.then_some(VersionMatch::NotOlderThan),
            limit: self.config.page_size,
            ..ListParams::default()
        }
    }

    /// Whether the server has our revision: a store that was restored from a snapshot has not come so far again. One where
    /// nothing was written since is exactly there, after a bookmark at the watch's end.
    async fn has_revision(&self, version: &str) -> kube::Result<bool> {
        // From the store, not from a cache of it that may be behind.
        let last = ListParams { resource_version: None, version_match: None, limit: Some(1), ..self.list_params() };
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

    async fn watch(&self, version: String) -> Step<K> {
        match self.events(&self.watch_params(), &version).await {
            Ok(events) => (None, State::Watching { version, since: Instant::now(), events }),
            Err(error) => {
                let next = if is_gone(&error) { State::Unknown } else { self.broken(version) };
                (Some(Err(Error::WatchStartFailed(error))), next)
            }
        }
    }

    /// As kube's, which has a reader of each type for objects that stand before their event's type in a line besides.
    async fn events(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> kube::Result<BoxStream<'static, kube::Result<WatchEvent<K>>>> {
        let built = Request::new(self.api.resource_url()).watch(params, version);
        let mut request = built.map_err(kube::Error::BuildRequest)?;
        // kube-apiserver 1.37 packs each event by itself, of which only the first would be unpacked.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let lines = self.api.clone().into_client().request_stream(request).await?.lines();
        Ok(lines.filter_map(async |line| line_read(line)).boxed())
    }

    /// What comes after what a watch has told; `None` is its end.
    fn take(
        &self,
        told: Option<kube::Result<WatchEvent<K>>>,
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
        match told {
            Some(Ok(WatchEvent::Added(new) | WatchEvent::Modified(new))) => object(new, Event::Apply, events),
            Some(Ok(WatchEvent::Deleted(old))) => object(old, Event::Delete, events),
            Some(Ok(WatchEvent::Bookmark(mark))) => {
                (None, State::Watching { version: mark.metadata.resource_version, since, events })
            }
            Some(Ok(WatchEvent::Error(status))) => {
                let next = if status.code == 410 { State::Unknown } else { self.broken(version) };
                (Some(Err(Error::WatchError(status.boxed()))), next)
            }
            Some(Err(error)) => {
                let next = match &error {
                    error if is_gone(error) => State::Unknown,
                    // What cannot be read is one object; those after it can.
                    kube::Error::SerdeError(_) => State::Watching { version, since, events },
                    _ => self.broken(version),
                };
                (Some(Err(Error::WatchFailed(error))), next)
            }
            None if since.elapsed() + EARLY < self.time() => (None, self.broken(version)),
            None => (None, State::Known { version, broken: false }),
        }
    }

    /// The server may be another than the one that told us what we know.
    fn broken(&self, version: String) -> State<K> {
        match self.extent {
            Extent::Few => State::Unknown,
            Extent::Many => State::Known { version, broken: true },
        }
    }

    fn time(&self) -> Duration {
        self.config.timeout.map_or(WATCH, |seconds| Duration::from_secs(seconds.into()))
    }
}

/// What comes after what the list of a watch has told.
fn initial<K>(
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
        // What cannot be read is one object; those after it can.
        Some(Err(kube::Error::SerdeError(error))) => {
            (Some(Err(Error::WatchFailed(kube::Error::SerdeError(error)))), State::Streaming { since, events })
        }
        Some(Err(error)) => (Some(Err(Error::InitialListFailed(error))), State::Unknown),
        // A list has no deletions, and an end.
        Some(Ok(WatchEvent::Deleted(_))) | None => {
            let error = kube::Error::ReadEvents(io::ErrorKind::UnexpectedEof.into());
            (Some(Err(Error::InitialListFailed(error))), State::Unknown)
        }
    }
}

/// An event as it stands in a line.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    what: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The event of a line; `None` for one that was broken off, after which the stream ends.
fn line_read<K: DeserializeOwned>(line: io::Result<String>) -> Option<kube::Result<WatchEvent<K>>> {
    let line = match line {
        Ok(line) => line,
        Err(error) => return Some(Err(kube::Error::ReadEvents(error))),
    };
    match event_of(&line) {
        Err(error) if error.is_eof() => None,
        Err(error) => Some(Err(match serde_json::from_str::<Status>(&line) {
            // No field of a status is a must: one without a code is any other object.
            Ok(status) if status.code != 0 => kube::Error::Api(status.boxed()),
            _ => kube::Error::SerdeError(error),
        })),
        Ok(event) => Some(Ok(event)),
    }
}

fn event_of<K: DeserializeOwned>(line: &str) -> serde_json::Result<WatchEvent<K>> {
    let Line { what, object } = serde_json::from_str(line)?;
    let text = object.get();
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

/// Whether a revision is another or comes after it. Both are numbers of the store; where one is none nobody can say.
fn reaches(one: &str, other: &str) -> bool {
    matches!((one.parse::<u64>(), other.parse::<u64>()), (Ok(one), Ok(other)) if one >= other)
}

#[cfg(test)]
mod tests;
