//! `watch`: initial events and changes, as a stream of JSON objects or of frames in protobuf.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures::{FutureExt as _, Stream, stream};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use windlass_apimachinery::protobuf::envelope;

use super::{
    read::Selectors,
    watch_encoding::{self, Change},
};
use crate::apiserver::{
    Api,
    filters::panics,
    generate::random_u32,
    request::{
        api_request::ApiRequest,
        error::{ApiError, ApiResult},
        negotiation::{Representation, metadata_of, table, table_of},
        request_info::RequestOptions,
        target::Target,
    },
    types::{ConversionError, Conversions, Version},
};
use crate::{
    schema::transcoding::Encoding,
    store::{self, Scope},
};

/// Interval of bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// How often watchers without recent events are checked for lag: if their last revision would leave the history before
/// they reconnect after a restart, they get an early bookmark.
const LAG_INTERVAL: Duration = Duration::from_secs(10);
/// As upstream, a watch without a timeout ends after a random time of 30 to 60 minutes, so that watches that began
/// together do not all reconnect together.
const MIN_TIMEOUT_SECONDS: u32 = 1800;
/// Maximum timeout, within the range of the clock.
const MAX_TIMEOUT_SECONDS: u64 = 365 * 86_400;

/// Size of the chunks in which initial and pending events are sent: one task must not stop others for a whole list, and
/// no list is in memory a second time.
const CHUNK_BYTES: usize = 64 << 10;

struct WatchStream {
    api: Api,
    /// Changes of the catalog: the watch ends with its resource.
    generation: watch::Receiver<u64>,
    watch: store::Watch,
    /// Objects of the initial list that were not sent yet.
    initial: std::vec::IntoIter<Arc<store::Object>>,
    /// The revision of the bookmark that ends the initial events.
    initial_bookmark: Option<u64>,
    version: Arc<Version>,
    namespace: Option<String>,
    selectors: Selectors,
    /// The selectors say nothing but the indexed field of the scope: the store knows what matches.
    scope_selects: bool,
    representation: Representation,
    encoding: Encoding,
    include: String,
    bookmarks: bool,
    ends_at: Instant,
    next_bookmark: Instant,
    next_look: Instant,
    /// The revision from which the client would go on.
    told: u64,
    ready: VecDeque<Bytes>,
    columns_sent: bool,
    ended: bool,
}

impl ApiRequest {
    pub(in crate::apiserver) fn watch(&self, target: &Target, options: &RequestOptions) -> ApiResult {
        let has_protobuf = target.version.spec.schema.is_built_in();
        let accept = if has_protobuf { self.accept } else { self.accept.without_protobuf() };
        // YAML has no streams.
        if accept.encoding == Encoding::Yaml {
            return Err(ApiError::not_acceptable(has_protobuf));
        }
        let selectors = Selectors::read(target, options)?;
        let resource = target.id()?;
        let (requested, current) = (options.revision()?, self.store().revision());
        if let Some(requested) = requested.filter(|requested| *requested > current) {
            return Err(ApiError::too_large_version(requested, current));
        }
        let is_refused = options.get("sendInitialEvents").is_some_and(|given| !given.is_empty());
        let initial = options.send_initial_events || requested.is_none() && !is_refused;
        let (items, after) = if initial {
            let (items, at) = self.store().list(resource, target.namespace.as_deref());
            (items, at)
        } else {
            (Vec::new(), requested.unwrap_or(current))
        };
        let indexed = || self.store().index_scope(resource, |field| selectors.exact_field(field));
        // One object: kubelets watch each ConfigMap and Secret so.
        let named = target.name.as_deref().or_else(|| selectors.exact_field("metadata.name"));
        let is_one = target.namespace.is_some() || !target.version.namespaced;
        let scope = match (&target.namespace, named.filter(|_| is_one)) {
            (_, Some(name)) => Scope::Object(store::Key { name: name.to_owned(), ..target.key() }),
            (Some(namespace), None) => indexed().unwrap_or_else(|| Scope::Namespace(namespace.clone())),
            (None, None) => indexed().unwrap_or(Scope::All),
        };
        let scope_selects = matches!(scope, Scope::Index(..)) && selectors.is_one_field();
        let watch = match self.store().watch_scope(resource, scope, after) {
            Ok(watch) => watch,
            // As upstream: clients list again after an event of this code. An answer of it makes kube-rs repeat the same
            // request for ever.
            Err(error @ store::Error::TooOld { .. }) => return Ok(refusal(accept.encoding, &ApiError::store(&error))),
            Err(error) => return Err(ApiError::store(&error)),
        };
        let now = Instant::now();
        let stream = WatchStream {
            generation: self.api.catalogs().subscribe(),
            api: self.api.clone(),
            watch,
            initial: items.into_iter(),
            // As upstream, also for a watch that names no revision at all.
            initial_bookmark: (options.bookmarks
                && (options.send_initial_events || initial && options.resource_version.is_empty()))
            .then_some(after),
            version: Arc::clone(&target.version),
            namespace: target.namespace.clone(),
            selectors,
            scope_selects,
            representation: accept.representation,
            encoding: accept.encoding,
            include: options.include_object.clone(),
            bookmarks: options.bookmarks,
            ends_at: now + watch_timeout(options.timeout, random_u32()),
            next_bookmark: now + BOOKMARK_INTERVAL,
            next_look: now + LAG_INTERVAL,
            told: after,
            ready: VecDeque::new(),
            columns_sent: false,
            ended: false,
        };
        Ok(response(stream))
    }
}

/// The timeout of a watch: the requested one, else a random one.
fn watch_timeout(requested: Option<u64>, random: u32) -> Duration {
    let requested = requested.filter(|seconds| *seconds > 0).map(|seconds| seconds.min(MAX_TIMEOUT_SECONDS));
    Duration::from_secs(requested.unwrap_or_else(|| u64::from(MIN_TIMEOUT_SECONDS + random % MIN_TIMEOUT_SECONDS)))
}

fn response(stream: WatchStream) -> Response {
    let encoding = stream.encoding;
    let frames = stream::unfold(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((bytes, stream))
    });
    response_of(encoding, frames)
}

/// A watch that ends with its first event.
fn refusal(encoding: Encoding, error: &ApiError) -> Response {
    let frame = encoded(encoding, "ERROR", &error.status());
    response_of(encoding, stream::once(async { frame }))
}

fn response_of(encoding: Encoding, frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let media_type = match encoding {
        Encoding::Protobuf => envelope::WATCH_MEDIA_TYPE,
        Encoding::Json | Encoding::Yaml => Encoding::Json.media_type(),
    };
    (StatusCode::OK, [(header::CONTENT_TYPE, media_type)], panics::body(frames)).into_response()
}

fn encoded(encoding: Encoding, kind: &str, object: &Value) -> Bytes {
    watch_encoding::encode(encoding, kind, &serde_json::to_vec(object).unwrap_or_default())
}

/// The first of some objects, of which one chunk is made.
fn chunk_of(objects: &[Arc<store::Object>]) -> &[Arc<store::Object>] {
    let mut bytes = 0;
    let fits = |object: &&Arc<store::Object>| {
        let fits = bytes < CHUNK_BYTES;
        bytes += object.bytes.len();
        fits
    };
    &objects[..objects.iter().take_while(fits).count()]
}

impl WatchStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.take_ready() {
                return Some(bytes);
            }
            if self.push_initial().await {
                continue;
            }
            if self.ended {
                return None;
            }
            let wake = if self.bookmarks { self.ends_at.min(self.next_look) } else { self.ends_at };
            let next = tokio::select! {
                next = tokio::time::timeout_at(wake, self.watch.next()) => next,
                Ok(()) = self.generation.changed() => {
                    self.follow_catalog().await;
                    continue;
                }
            };
            match next {
                Ok(Ok(changes)) => self.on_changes(&changes).await,
                Ok(Err(store::Error::Closed)) => return None,
                Ok(Err(error)) => self.fail(ApiError::store(&error)),
                Err(_) => {
                    let now = Instant::now();
                    self.ended = now >= self.ends_at;
                    if self.bookmarks {
                        self.next_look = now + LAG_INTERVAL;
                        if self.ended || now >= self.next_bookmark || self.watch.is_compacted(self.told) {
                            self.bookmark(self.watch.revision(), false);
                            self.next_bookmark = now + BOOKMARK_INTERVAL;
                        }
                    }
                }
            }
        }
    }

    /// Goes on with the resource as it is served now, or ends with it after its last events.
    async fn follow_catalog(&mut self) {
        let gvk = &self.version.gvk;
        let catalog = self.api.catalogs().current();
        match catalog.find(&gvk.group, &gvk.version, &self.version.plural) {
            // Of another definition with the same name the client lists first.
            Some(version) if version.identity == self.version.identity => self.version = Arc::clone(version),
            _ => {
                if let Some(Ok(events)) = self.watch.next().now_or_never() {
                    self.on_changes(&events).await;
                }
                self.ended = true;
            }
        }
    }

    /// Encodes some initial events, or the bookmark after them; false when all were sent.
    async fn push_initial(&mut self) -> bool {
        let mut bytes = 0;
        let foreign = self.version.stored_otherwise(chunk_of(self.initial.as_slice()));
        let Some(conversions) = self.converted(foreign).await else { return true };
        while bytes < CHUNK_BYTES
            && let Some(object) = self.initial.next()
        {
            bytes += object.bytes.len();
            if self.scope_selects && !self.watch.has(&object) {
                continue;
            }
            if self.shows_stored_bytes() && (self.scope_selects || self.selectors.is_empty()) {
                self.ready.push_back(watch_encoding::encode(self.encoding, "ADDED", &object.bytes));
                continue;
            }
            match self.version.decode(&object, &conversions) {
                Ok(value) if self.selectors.matches(&value) => self.push("ADDED", value),
                Ok(_) => {}
                Err(error) => {
                    self.fail(error.into());
                    return true;
                }
            }
        }
        if bytes == 0
            && let Some(revision) = self.initial_bookmark.take()
        {
            self.bookmark(revision, true);
            return true;
        }
        bytes > 0
    }

    /// Pending events as one chunk of limited size. A large event is not copied: all watchers share it.
    fn take_ready(&mut self) -> Option<Bytes> {
        let first = self.ready.pop_front()?;
        let fits = |size: usize, ready: &VecDeque<Bytes>| ready.front().is_some_and(|b| size + b.len() <= CHUNK_BYTES);
        if !fits(first.len(), &self.ready) {
            return Some(first);
        }
        let mut chunk = first.to_vec();
        while fits(chunk.len(), &self.ready)
            && let Some(next) = self.ready.pop_front()
        {
            chunk.extend_from_slice(&next);
        }
        Some(chunk.into())
    }

    /// Whether objects are shown as they are stored.
    fn shows_stored_bytes(&self) -> bool {
        self.representation == Representation::Object && self.version.is_served_as_stored()
    }

    /// Whether the selectors match the object before and after an event, if that is known without reading them.
    fn known_matches(&self, event: &store::Event) -> Option<(bool, bool)> {
        let selected = |object: &store::Object| match (self.scope_selects, self.selectors.is_empty()) {
            (true, _) => Some(self.watch.has(object)),
            (false, true) => Some(true),
            (false, false) => None,
        };
        let matched = event.previous.as_ref().map_or(Some(false), |previous| selected(previous))?;
        Some((matched, if event.deleted { false } else { selected(&event.object)? }))
    }

    async fn on_changes(&mut self, events: &[Arc<store::Event>]) {
        let foreign = self.stored_otherwise(events);
        let Some(conversions) = self.converted(foreign).await else { return };
        for event in events {
            if self.ended {
                return;
            }
            if !self.is_in_scope(event) {
                continue;
            }
            if let Err(error) = self.show(event, &conversions) {
                self.fail(error.into());
            }
        }
    }

    fn is_in_scope(&self, event: &store::Event) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == event.object.key.namespace)
    }

    /// What must be converted to show events. Where nothing is selected, nobody asks how an object was before.
    fn stored_otherwise(&self, events: &[Arc<store::Event>]) -> Result<Vec<Arc<store::Object>>, ConversionError> {
        let selects = !self.selectors.is_empty();
        let seen = events.iter().filter(|event| self.is_in_scope(event));
        let objects = seen.flat_map(|event| event.previous.iter().filter(|_| selects).chain([&event.object]));
        self.version.stored_otherwise(objects)
    }

    /// Converts objects; without that the watch ends with an error.
    async fn converted(&mut self, foreign: Result<Vec<Arc<store::Object>>, ConversionError>) -> Option<Conversions> {
        let converted = match foreign {
            Ok(foreign) => self.version.conversions(foreign).await,
            Err(error) => Err(error),
        };
        converted.map_err(|error| self.fail(error.into())).ok()
    }

    /// Sends an event as this watcher sees it, if it does.
    fn show(&mut self, event: &store::Event, conversions: &Conversions) -> Result<(), ConversionError> {
        let (matched, matches) = match self.known_matches(event) {
            Some(known) => known,
            None => watch_encoding::matches(&self.version, (event, conversions), |one| {
                self.selectors.match_selectable(one)
            })?,
        };
        let Some(change) = Change::of(event, matched, matches) else { return Ok(()) };
        if self.representation.is_table() {
            let object = change.object(&self.version, event, conversions)?;
            self.push(change.kind(), object);
        } else {
            let form = (self.representation, self.encoding);
            let frame = watch_encoding::frame(&self.version, form, (event, conversions), change)?;
            self.ready.push_back(frame);
        }
        self.told = event.object.revision;
        Ok(())
    }

    /// Ends the watch with an error.
    fn fail(&mut self, error: ApiError) {
        self.send("ERROR", &error.status());
        self.initial = Vec::new().into_iter();
        self.initial_bookmark = None;
        self.ended = true;
    }

    fn push(&mut self, kind: &str, object: Value) {
        let object_shown = match self.representation {
            Representation::Object => object,
            Representation::Metadata(meta) => metadata_of(meta, &object),
            Representation::Table(meta) => {
                let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                table(&self.version, meta, &[object], &self.include, metadata, columns)
            }
        };
        self.send(kind, &object_shown);
    }

    fn bookmark(&mut self, revision: u64, initial_end: bool) {
        self.told = revision;
        let gvk = &self.version.gvk;
        let mut object = json!({"kind": gvk.kind, "apiVersion": gvk.api_version(), "metadata": {"resourceVersion": revision.to_string()}});
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        match self.representation {
            Representation::Object => self.send("BOOKMARK", &object),
            Representation::Metadata(meta) => self.send("BOOKMARK", &metadata_of(meta, &object)),
            Representation::Table(meta) => {
                let metadata = object["metadata"].clone();
                let row = json!({"cells": [], "object": metadata_of(meta, &object)});
                let object_shown = table_of(meta, metadata, None, vec![row]);
                self.send("BOOKMARK", &object_shown);
            }
        }
    }

    fn send(&mut self, kind: &str, object: &Value) {
        self.ready.push_back(encoded(self.encoding, kind, object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_times_out_as_requested_or_after_30_to_60_minutes() {
        for (requested, random, seconds) in [
            (Some(7), 900, 7),
            (None, 0, 1800),
            (None, 1799, 3599),
            (None, 1800, 1800),
            (Some(0), 5, 1805),
            (Some(u64::MAX), 5, MAX_TIMEOUT_SECONDS),
            (Some(0), u32::MAX, u64::from(1800 + u32::MAX % 1800)),
        ] {
            assert_eq!(watch_timeout(requested, random), Duration::from_secs(seconds), "{requested:?} {random}");
        }
    }
}
