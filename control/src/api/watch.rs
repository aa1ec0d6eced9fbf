//! `watch`: what there is, then every change, as a stream of JSON objects.

use std::{collections::VecDeque, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures::stream;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Answer, Call,
    error::ApiError,
    output::{Form, metadata_of, table},
    prepare::random_u32,
    read::Selectors,
    target::{Options, Target},
};
use crate::{registry::ResourceType, store};

/// Clients that keep their place by bookmarks get one this often.
const BOOKMARK: Duration = Duration::from_secs(60);
/// A watch without a time of its own, or with a time of 0, ends after half an hour to an hour, as upstream's do: at random, so
/// that those that began together do not come back together.
const SHORTEST: u32 = 1800;
/// Whoever asks for longer gets a year: the clock must be able to tell the end.
const LONGEST: u64 = 365 * 86_400;

struct Watching {
    watch: store::Watch,
    resource: &'static ResourceType,
    namespace: Option<String>,
    selectors: Selectors,
    form: Form,
    include: String,
    bookmarks: bool,
    ends_at: Instant,
    next_bookmark: Instant,
    ready: VecDeque<Bytes>,
    columns_sent: bool,
    over: bool,
}

impl Call {
    pub(super) fn watch(&self, target: &Target, options: &Options) -> Answer {
        let selectors = Selectors::read(target, options)?;
        let qualified = target.resource.qualified();
        let (asked, current) = (options.revision()?, self.api.store().revision());
        if let Some(asked) = asked.filter(|asked| *asked > current) {
            return Err(ApiError::too_large_version(asked, current));
        }
        let initial = options.send_initial_events || asked.is_none();
        let (items, after) = if initial {
            let (items, at) = self.api.store().list(qualified, target.namespace.as_deref());
            (items, at)
        } else {
            (Vec::new(), asked.unwrap_or(current))
        };
        let watch = self.api.store().watch(qualified, after).map_err(|e| ApiError::store(&e))?;
        let now = Instant::now();
        let mut watching = Watching {
            watch,
            resource: target.resource,
            namespace: target.namespace.clone(),
            selectors,
            form: self.accept.form,
            include: options.include_object.clone(),
            bookmarks: options.bookmarks,
            ends_at: now + lasts(options.timeout, random_u32()),
            next_bookmark: now + BOOKMARK,
            ready: VecDeque::new(),
            columns_sent: false,
            over: false,
        };
        for (_, object) in items {
            let value = object.value();
            if watching.selectors.matches(&value) {
                watching.push("ADDED", value);
            }
        }
        if options.send_initial_events && options.bookmarks {
            watching.bookmark(after, true);
        }
        Ok(stream_of(watching))
    }
}

/// How long a watch lasts: as long as was asked for, else a random time.
fn lasts(asked: Option<u64>, random: u32) -> Duration {
    let asked = asked.filter(|seconds| *seconds > 0).map(|seconds| seconds.min(LONGEST));
    Duration::from_secs(asked.unwrap_or_else(|| u64::from(SHORTEST + random % SHORTEST)))
}

fn stream_of(watching: Watching) -> Response {
    let stream = stream::unfold(watching, |mut watching| async move {
        let bytes = watching.next().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes), watching))
    });
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], Body::from_stream(stream)).into_response()
}

impl Watching {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.take() {
                return Some(bytes);
            }
            if self.over {
                return None;
            }
            let wake = if self.bookmarks { self.ends_at.min(self.next_bookmark) } else { self.ends_at };
            match tokio::time::timeout_at(wake, self.watch.next()).await {
                Ok(Ok(changes)) => changes.into_iter().for_each(|c| self.change(&c)),
                Ok(Err(store::Error::Closed)) => return None,
                Ok(Err(error)) => {
                    self.send("ERROR", &ApiError::store(&error).status());
                    self.over = true;
                }
                Err(_) => {
                    let now = Instant::now();
                    if self.bookmarks {
                        self.bookmark(self.watch.revision(), false);
                        self.next_bookmark = now + BOOKMARK;
                    }
                    self.over = now >= self.ends_at;
                }
            }
        }
    }

    /// Everything that is ready, as one piece.
    fn take(&mut self) -> Option<Bytes> {
        if self.ready.len() <= 1 {
            return self.ready.pop_front();
        }
        let mut all = Vec::with_capacity(self.ready.iter().map(Bytes::len).sum());
        self.ready.drain(..).for_each(|b| all.extend_from_slice(&b));
        Some(all.into())
    }

    /// An object that begins or ceases to match comes or goes, for this reader.
    fn change(&mut self, change: &store::Change) {
        if self.namespace.as_ref().is_some_and(|n| *n != change.key.namespace) {
            return;
        }
        if self.selectors.is_empty() && self.form == Form::Object {
            let kind = match (change.deleted, &change.previous) {
                (true, _) => "DELETED",
                (false, None) => "ADDED",
                (false, Some(_)) => "MODIFIED",
            };
            return self.send_bytes(kind, &change.object.bytes);
        }
        let object = change.object.value();
        let before = change.previous.as_ref().map(|p| p.value());
        let matched = before.as_ref().is_some_and(|b| self.selectors.matches(b));
        let matches = !change.deleted && self.selectors.matches(&object);
        match (matched, matches) {
            (false, true) => self.push("ADDED", object),
            (true, true) => self.push("MODIFIED", object),
            (true, false) => {
                // What is told is the last state that matched, with the revision of the change.
                let mut last = before.unwrap_or(object);
                last["metadata"]["resourceVersion"] = json!(change.object.revision.to_string());
                self.push("DELETED", last);
            }
            (false, false) => {}
        }
    }

    fn push(&mut self, kind: &str, object: Value) {
        let shown = match self.form {
            Form::Object => object,
            Form::Metadata => metadata_of(&object),
            Form::Table => {
                let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                table(self.resource, &[object], &self.include, metadata, columns)
            }
        };
        self.send(kind, &shown);
    }

    fn bookmark(&mut self, revision: u64, initial_end: bool) {
        let gvk = &self.resource.gvk;
        let mut object = json!({"kind": gvk.kind, "apiVersion": gvk.api_version(), "metadata": {"resourceVersion": revision.to_string()}});
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        match self.form {
            Form::Object => self.send("BOOKMARK", &object),
            Form::Metadata => self.send("BOOKMARK", &metadata_of(&object)),
            Form::Table => {
                let metadata = object["metadata"].clone();
                let row = json!({"cells": [], "object": metadata_of(&object)});
                let shown = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": [], "rows": [row]});
                self.send("BOOKMARK", &shown);
            }
        }
    }

    fn send(&mut self, kind: &str, object: &Value) {
        let bytes = serde_json::to_vec(object).unwrap_or_default();
        self.send_bytes(kind, &bytes);
    }

    fn send_bytes(&mut self, kind: &str, object: &[u8]) {
        let mut out = Vec::with_capacity(object.len() + 40);
        out.extend_from_slice(format!(r#"{{"type":"{kind}","object":"#).as_bytes());
        out.extend_from_slice(object);
        out.extend_from_slice(b"}\n");
        self.ready.push_back(out.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_lasts_as_long_as_asked_for_or_half_an_hour_to_an_hour() {
        for (asked, random, seconds) in [
            (Some(7), 900, 7),
            (None, 0, 1800),
            (None, 1799, 3599),
            (None, 1800, 1800),
            (Some(0), 5, 1805),
            (Some(u64::MAX), 5, LONGEST),
            (Some(0), u32::MAX, u64::from(1800 + u32::MAX % 1800)),
        ] {
            assert_eq!(lasts(asked, random), Duration::from_secs(seconds), "{asked:?} {random}");
        }
    }
}
