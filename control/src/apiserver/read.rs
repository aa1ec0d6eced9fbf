//! `get` and `list`.

use std::sync::Arc;

use axum::http::StatusCode;
use base64::Engine as _;
use serde_json::{Value, json};
use windlass_apimachinery::selectors::{FieldSelector, LabelSelector};

use super::{
    chain::{ApiRequest, ApiResult},
    error::ApiError,
    negotiation::{Representation, metadata_of, table},
    request_info::RequestOptions,
    target::Target,
    types::Version,
};
use crate::store::{Error, Key, Object};

/// Objects in the order of their keys.
type Items = Vec<Arc<Object>>;

/// The label and field selectors of a query.
#[derive(Debug, Clone)]
pub(crate) struct Selectors {
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selectors {
    pub(crate) fn read(target: &Target, options: &RequestOptions) -> Result<Self, ApiError> {
        let labels = LabelSelector::parse(&options.labels).map_err(|e| ApiError::bad_request(e.to_string()))?;
        let mut query = options.fields.clone();
        // `list` and `watch` of a single object are a list with its name.
        if let Some(name) = target.name.as_ref().filter(|_| options.watch) {
            query = format!("{query},metadata.name={name}");
        }
        let fields = FieldSelector::parse(&query, &target.version.spec.selectable)
            .map_err(|e| ApiError::bad_request(e.to_string()))?;
        Ok(Self { labels, fields })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The value that a field must have, if the selector says one.
    pub(super) fn exact_field(&self, field: &str) -> Option<&str> {
        self.fields.exact(field)
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}

impl ApiRequest {
    pub(super) fn get(&self, target: &Target) -> ApiResult {
        let object = self.fetch(target)?;
        match self.accept.representation {
            Representation::Object => Ok(self.accept.bytes(StatusCode::OK, target.version.encode(&object))),
            _ => Ok(self.accept.object(StatusCode::OK, &target.version, target.version.decode(&object), "")),
        }
    }

    /// The stored object of a target.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn fetch(&self, target: &Target) -> Result<Arc<Object>, ApiError> {
        self.find(target)?.ok_or_else(|| ApiError::not_found(&target.version, target.name()))
    }

    /// The object of a target in its version.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn read(&self, target: &Target) -> Result<Value, ApiError> {
        Ok(target.version.decode(&*self.fetch(target)?))
    }

    pub(super) fn find(&self, target: &Target) -> Result<Option<Arc<Object>>, ApiError> {
        Ok(self.store().get(target.id()?, &target.key()))
    }

    /// The objects of a list: the latest ones, or those at the requested revision or at the revision of the first page.
    fn list_items(
        &self,
        target: &Target,
        options: &RequestOptions,
        wanted_revision: Option<u64>,
    ) -> Result<(Items, u64), ApiError> {
        let (store, resource, namespace) = (self.store(), target.id()?, target.namespace.as_deref());
        let error = |error: Error, old: ApiError| {
            if matches!(error, Error::TooOld { .. }) { old } else { ApiError::store(&error) }
        };
        if options.continue_.is_empty() {
            let exact = match options.resource_version_match.as_str() {
                "Exact" => true,
                // As upstream: `limit` with a resource version and without a match means `Exact`.
                "" => options.limit > 0,
                _ => false,
            };
            let Some(wanted_revision) = wanted_revision.filter(|_| exact) else {
                return Ok(store.list(resource, namespace));
            };
            let old = "The resourceVersion for the provided list is too old.";
            let items =
                store.list_at(resource, namespace, wanted_revision).map_err(|e| error(e, ApiError::expired(old)))?;
            return Ok((items, wanted_revision));
        }
        let (at, start) = decode_continue(&options.continue_)?;
        let (mut items, revision) = match at {
            Some(at) if at > store.revision() => return Err(ApiError::too_large_version(at, store.revision())),
            Some(at) => {
                let listed = store.list_at(resource, namespace, at);
                (listed.map_err(|e| error(e, ApiError::expired_continue_token(encode_continue(None, &start))))?, at)
            }
            None => store.list(resource, namespace),
        };
        items.drain(..items.partition_point(|object| object.key <= start));
        Ok((items, revision))
    }

    pub(super) fn list(&self, target: &Target, options: &RequestOptions) -> ApiResult {
        let version = &target.version;
        let selectors = Selectors::read(target, options)?;
        let current = self.store().revision();
        let wanted_revision = options.revision()?;
        if let Some(wanted_revision) = wanted_revision.filter(|wanted_revision| *wanted_revision > current) {
            return Err(ApiError::too_large_version(wanted_revision, current));
        }
        let (mut items, revision) = self.list_items(target, options, wanted_revision)?;
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
            if self.accept.representation != Representation::Object {
                values = Some(items.iter().map(|object| version.decode(object)).collect());
            }
        } else {
            // Objects behind the page are left to the next one.
            let (mut page, mut decoded) = (Vec::new(), Vec::new());
            for object in items {
                let value = version.decode(&object);
                if !selectors.matches(&value) {
                    continue;
                }
                if page.len() == limit {
                    more = true;
                    break;
                }
                page.push(object);
                if self.accept.representation != Representation::Object {
                    decoded.push(value);
                }
            }
            items = page;
            values = Some(decoded);
        }
        if let Some(last) = items.last().filter(|_| more) {
            metadata["continue"] = json!(encode_continue(Some(revision), &last.key));
        }
        Ok(match (self.accept.representation, values) {
            (Representation::Table, Some(values)) => self
                .accept
                .write(StatusCode::OK, &table(&target.version, &values, &options.include_object, metadata, true)),
            (Representation::Metadata, Some(values)) => {
                let items: Vec<Value> = values.iter().map(metadata_of).collect();
                let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items});
                self.accept.write(StatusCode::OK, &list)
            }
            _ => self.accept.bytes(StatusCode::OK, encode_list(version, &metadata, &items).into()),
        })
    }
}

/// A list built from the stored bytes, which are not decoded unless the version differs from the stored one.
fn encode_list(version: &Version, metadata: &Value, items: &[Arc<Object>]) -> Vec<u8> {
    let size: usize = items.iter().map(|o| o.bytes.len() + 1).sum();
    let mut out = Vec::with_capacity(size + 160);
    out.extend_from_slice(
        format!(
            r#"{{"kind":"{}","apiVersion":"{}","metadata":{metadata},"items":["#,
            version.list_kind,
            version.gvk.api_version()
        )
        .as_bytes(),
    );
    for (at, object) in items.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&version.encode(object));
    }
    out.extend_from_slice(b"]}");
    out
}

/// The token of the next page: its start, and the revision of all pages. Without a revision the list continues in the
/// present.
fn encode_continue(revision: Option<u64>, last: &Key) -> String {
    let revision = revision.map_or(json!(-1), Value::from);
    let token = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": format!("{}/{}", last.namespace, last.name)});
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token.to_string())
}

fn decode_continue(text: &str) -> Result<(Option<u64>, Key), ApiError> {
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
