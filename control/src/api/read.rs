//! `get` and `list`.

use std::sync::Arc;

use axum::http::StatusCode;
use base64::Engine as _;
use serde_json::{Value, json};

use super::{
    Answer, Call,
    error::ApiError,
    output::{Form, metadata_of, table},
    target::{Options, Target},
};
use crate::{
    select::{Fields, Labels},
    store::{Error, Key, Object},
};

/// Objects in the order of their keys.
type Items = Vec<(Key, Arc<Object>)>;

/// Both selectors of a query.
#[derive(Debug, Clone)]
pub(super) struct Selectors {
    labels: Labels,
    fields: Fields,
}

impl Selectors {
    pub(super) fn read(target: &Target, options: &Options) -> Result<Self, ApiError> {
        let labels = Labels::parse(&options.labels).map_err(|e| ApiError::bad_request(e.to_string()))?;
        let mut query = options.fields.clone();
        // `list` and `watch` of a single object are a list with its name.
        if let Some(name) = target.name.as_ref().filter(|_| options.watch) {
            query = format!("{query},metadata.name={name}");
        }
        let fields = Fields::parse(&query, &target.resource.gvk).map_err(|e| ApiError::bad_request(e.to_string()))?;
        Ok(Self { labels, fields })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}

impl Call {
    pub(super) fn get(&self, target: &Target) -> Answer {
        let object = self.fetch(target)?;
        match self.accept.form {
            Form::Object => Ok(self.accept.bytes(StatusCode::OK, object.bytes.clone())),
            _ => Ok(self.accept.object(StatusCode::OK, target.resource, object.value(), "")),
        }
    }

    pub(super) fn fetch(&self, target: &Target) -> Result<Arc<Object>, ApiError> {
        let name = target.name.as_deref().unwrap_or("");
        self.find(target).ok_or_else(|| ApiError::not_found(target.resource, name))
    }

    pub(super) fn find(&self, target: &Target) -> Option<Arc<Object>> {
        self.api.store().get(target.resource.qualified(), &target.key())
    }

    /// What a list is of: the present, or what was there at the revision that is asked for or that the first page had.
    fn items(&self, target: &Target, options: &Options, asked: Option<u64>) -> Result<(Items, u64), ApiError> {
        let (store, resource, namespace) = (self.api.store(), target.resource.qualified(), target.namespace.as_deref());
        let error = |error: Error, old: ApiError| {
            if matches!(error, Error::TooOld { .. }) { old } else { ApiError::store(&error) }
        };
        if options.continue_.is_empty() {
            let exact = match options.resource_version_match.as_str() {
                "Exact" => true,
                // Upstream's rule for who asks for pages of a revision and does not say how it is meant.
                "" => options.limit > 0,
                _ => false,
            };
            let Some(asked) = asked.filter(|_| exact) else { return Ok(store.list(resource, namespace)) };
            let old = "The resourceVersion for the provided list is too old.";
            let items = store.list_at(resource, namespace, asked).map_err(|e| error(e, ApiError::expired(old)))?;
            return Ok((items, asked));
        }
        let (at, start) = read_token(&options.continue_)?;
        let (mut items, revision) = match at {
            Some(at) if at > store.revision() => return Err(ApiError::too_large_version(at, store.revision())),
            Some(at) => {
                let listed = store.list_at(resource, namespace, at);
                (listed.map_err(|e| error(e, ApiError::expired_continue(write_token(None, &start))))?, at)
            }
            None => store.list(resource, namespace),
        };
        items.drain(..items.partition_point(|(key, _)| *key <= start));
        Ok((items, revision))
    }

    pub(super) fn list(&self, target: &Target, options: &Options) -> Answer {
        let selectors = Selectors::read(target, options)?;
        let current = self.api.store().revision();
        let asked = options.revision()?;
        if let Some(asked) = asked.filter(|asked| *asked > current) {
            return Err(ApiError::too_large_version(asked, current));
        }
        let (mut items, revision) = self.items(target, options, asked)?;
        let limit = if options.limit > 0 { options.limit } else { usize::MAX };
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        let mut more = false;
        let mut values: Option<Vec<Value>> = None;
        if selectors.is_empty() {
            more = items.len() > limit;
            if more {
                metadata["remainingItemCount"] = json!(items.len() - limit);
            }
            items.truncate(limit);
            if self.accept.form != Form::Object {
                values = Some(items.iter().map(|(_, object)| object.value()).collect());
            }
        } else {
            // No further than the page goes: what comes behind it is the next page's to look at.
            let (mut kept, mut decoded) = (Vec::new(), Vec::new());
            for (key, object) in items {
                let value = object.value();
                if !selectors.matches(&value) {
                    continue;
                }
                if kept.len() == limit {
                    more = true;
                    break;
                }
                kept.push((key, object));
                if self.accept.form != Form::Object {
                    decoded.push(value);
                }
            }
            items = kept;
            values = Some(decoded);
        }
        if let Some((last, _)) = items.last().filter(|_| more) {
            metadata["continue"] = json!(write_token(Some(revision), last));
        }
        Ok(match (self.accept.form, values) {
            (Form::Table, Some(values)) => self
                .accept
                .write(StatusCode::OK, &table(target.resource, &values, &options.include_object, metadata, true)),
            (Form::Metadata, Some(values)) => {
                let items: Vec<Value> = values.iter().map(metadata_of).collect();
                let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items});
                self.accept.write(StatusCode::OK, &list)
            }
            _ => self.accept.bytes(StatusCode::OK, assemble(target, &metadata, &items).into()),
        })
    }
}

/// A list put together from the stored bytes, without decoding them.
fn assemble(target: &Target, metadata: &Value, items: &[(Key, Arc<Object>)]) -> Vec<u8> {
    let gvk = &target.resource.gvk;
    let size: usize = items.iter().map(|(_, o)| o.bytes.len() + 1).sum();
    let mut out = Vec::with_capacity(size + 160);
    out.extend_from_slice(
        format!(r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#, gvk.kind, gvk.api_version())
            .as_bytes(),
    );
    for (at, (_, object)) in items.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&object.bytes);
    }
    out.extend_from_slice(b"]}");
    out
}

/// Where the next page begins, and the revision that all pages are of; without one they go on in the present.
fn write_token(revision: Option<u64>, last: &Key) -> String {
    let revision = revision.map_or(json!(-1), Value::from);
    let token = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": format!("{}/{}", last.namespace, last.name)});
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token.to_string())
}

fn read_token(text: &str) -> Result<(Option<u64>, Key), ApiError> {
    let wrong = || ApiError::bad_request("continue key is not valid: it must be what an earlier list gave");
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
    let token: Value = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
    let start = token["start"].as_str().and_then(|s| s.split_once('/')).ok_or_else(wrong)?;
    let revision = match token["rv"].as_i64() {
        Some(-1) => None,
        Some(revision) => Some(u64::try_from(revision).map_err(|_| wrong())?),
        None => return Err(wrong()),
    };
    Ok((revision, Key { namespace: start.0.to_owned(), name: start.1.to_owned() }))
}
