//! The OpenAPI documents of what a catalog serves, which kubectl reads before it applies or explains anything.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    sync::Arc,
};

use axum::body::Bytes;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use parking_lot::Mutex;
use ring::digest::{SHA512, digest};
use serde_json::{Map, Value, json};
use windlass_apimachinery::{
    openapi::{
        Descriptions, Documents, GroupVersionResources, Gvk, Model, Resource, SubresourceKind, v2_merge, v2_protobuf,
    },
    schema::NamedType,
};

use crate::{
    apiserver::types::{Catalog, OpenApiV2, Subresource, Version},
    kinds::{descriptions, types},
};

/// The version that documents name.
const VERSION: &str = "1.36";

/// The list of documents: `api/v1`, `apis/coordination.k8s.io/v1` …, each with a hash of what it says; those of extension API
/// servers are where these say.
#[must_use]
pub fn index(catalog: &Catalog) -> Value {
    let hashes = hashes(catalog).into_iter();
    let mut urls: BTreeMap<String, String> = hashes
        .map(|(path, hash)| {
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path, url)
        })
        .collect();
    for extension in &catalog.extensions {
        urls.remove(&path_of(&extension.group, &extension.version));
    }
    for (path, url) in catalog.extensions.iter().flat_map(|extension| extension.openapi_v3.iter()) {
        urls.entry(path.clone()).or_insert_with(|| url.clone());
    }
    let paths: Map<String, Value> =
        urls.into_iter().map(|(path, url)| (path, json!({"serverRelativeURL": url}))).collect();
    json!({"paths": paths})
}

fn path_of(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The path of a group and version in the list of documents, and the hash of what its document says.
#[must_use]
pub fn hash(catalog: &Catalog, group: &str, version: &str) -> (String, String) {
    let path = path_of(group, version);
    let hash = hashes(catalog).remove(&path).unwrap_or_default();
    (path, hash)
}

/// The hash of the document of version 2, which follows from those of version 3 and from what others have.
#[must_use]
pub fn hash_v2(catalog: &Catalog, others: &[Arc<OpenApiV2>]) -> String {
    let mut all: Vec<String> = hashes(catalog).into_values().collect();
    all.extend(others.iter().map(|other| other.etag.clone()));
    hash_of(all.concat().as_bytes())
}

/// The document of one group and version.
#[must_use]
pub fn document(catalog: &Catalog, group: &str, version: &str) -> Bytes {
    let path = path_of(group, version);
    let kept = with_kept(catalog, |kept| expanded(kept.groups.get(&path)?.text.as_deref()?));
    kept.unwrap_or_else(|| {
        with_documents(|documents| documents.v3(&describe(catalog, group, version))).to_string().into()
    })
}

/// The definitions of types in the document of one group and version, by their names. They are made for the caller alone.
#[must_use]
pub fn definitions(catalog: &Catalog, group: &str, version: &str) -> Value {
    let mut document = with_documents(|documents| documents.v3(&describe(catalog, group, version)));
    document["components"]["schemas"].take()
}

/// The document of all groups in version 2, in JSON, with what `others` serve.
#[must_use]
pub fn document_v2(catalog: &Catalog, others: &[Arc<OpenApiV2>]) -> Bytes {
    kept_v2(catalog, "v2", others, || value_v2(catalog, others).to_string().into())
}

/// The document of all groups in version 2, in protobuf, with what `others` serve.
#[must_use]
pub fn document_v2_protobuf(catalog: &Catalog, others: &[Arc<OpenApiV2>]) -> Bytes {
    kept_v2(catalog, "v2 in protobuf", others, || v2_protobuf::encode(&value_v2(catalog, others)).into())
}

fn value_v2(catalog: &Catalog, others: &[Arc<OpenApiV2>]) -> Value {
    let mut merged = with_documents(|documents| documents.v2(&describe_all(catalog)));
    for other in others {
        v2_merge::merge(&mut merged, &other.document);
    }
    merged
}

/// What was made of a catalog: each document takes long to make, is large, and is asked for again by every client that
/// starts.
struct Kept {
    /// The documents of version 3 by their paths.
    groups: BTreeMap<String, Document>,
    /// Documents of all groups by their names, compressed.
    whole: BTreeMap<String, Vec<u8>>,
    /// The hash of the documents of others that are in those of all groups.
    others: String,
}

/// A document of version 3.
struct Document {
    /// What it describes. What changes is served as other values of these, so that they say whether it is still right.
    of: Vec<Arc<Version>>,
    /// Clients keep documents by it.
    hash: String,
    /// Its text, compressed.
    text: Option<Vec<u8>>,
}

impl Document {
    fn describes(&self, served: &[Arc<Version>]) -> bool {
        self.of.len() == served.len() && self.of.iter().zip(served).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

impl Kept {
    const fn new() -> Self {
        Self { groups: BTreeMap::new(), whole: BTreeMap::new(), others: String::new() }
    }

    /// Makes the documents of what is served otherwise than before, drops those of what is served no longer, and returns the
    /// paths of those that were made: a definition that comes or goes costs the document of its group alone.
    fn update(&mut self, catalog: &Catalog) -> Vec<String> {
        let mut before = std::mem::take(&mut self.groups);
        let mut missing = Vec::new();
        for (group, served) in catalog.groups.iter().flat_map(|g| g.versions.iter().map(|v| (&g.name, v))) {
            let path = path_of(group, &served.version);
            match before.remove(&path).filter(|document| document.describes(&served.resources)) {
                Some(document) => drop(self.groups.insert(path, document)),
                None => missing.push((path, group, served)),
            }
        }
        if missing.is_empty() && before.is_empty() {
            return Vec::new();
        }
        self.whole.clear();
        with_documents(|documents| {
            for (path, group, served) in &missing {
                let text = documents.v3(&describe(catalog, group, &served.version)).to_string();
                let (of, hash) = (served.resources.clone(), hash_of(text.as_bytes()));
                self.groups.insert(path.clone(), Document { of, hash, text: compressed(text.as_bytes()) });
            }
        });
        missing.into_iter().map(|(path, ..)| path).collect()
    }
}

/// One lock for all: it is held while documents are built, see `dispatch`.
static KEPT: Mutex<Kept> = Mutex::new(Kept::new());

/// Runs `with` on what is kept of a catalog, after it was brought up to date.
fn with_kept<T>(catalog: &Catalog, with: impl FnOnce(&mut Kept) -> T) -> T {
    let mut kept = KEPT.lock();
    kept.update(catalog);
    with(&mut kept)
}

/// A document of version 2 that is kept, or is made and kept until those of others change.
fn kept_v2(catalog: &Catalog, name: &str, others: &[Arc<OpenApiV2>], make: impl FnOnce() -> Bytes) -> Bytes {
    let hash = hash_of(others.iter().map(|other| other.etag.as_str()).collect::<Vec<_>>().join(" ").as_bytes());
    with_kept(catalog, |kept| {
        if kept.others != hash {
            kept.whole.clear();
            kept.others = hash;
        }
        if let Some(document) = kept.whole.get(name).and_then(|bytes| expanded(bytes)) {
            return document;
        }
        let document = make();
        kept.whole.extend(compressed(&document).map(|bytes| (name.to_owned(), bytes)));
        document
    })
}

fn compressed(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).ok()
}

fn expanded(bytes: &[u8]) -> Option<Bytes> {
    let mut expanded = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut expanded).ok()?;
    Some(expanded.into())
}

fn hashes(catalog: &Catalog) -> BTreeMap<String, String> {
    with_kept(catalog, |kept| {
        kept.groups.iter().map(|(path, document)| (path.clone(), document.hash.clone())).collect()
    })
}

/// As upstream's: SHA-512 in capital hexadecimal digits.
pub(crate) fn hash_of(bytes: &[u8]) -> String {
    digest(&SHA512, bytes).as_ref().iter().map(|byte| format!("{byte:02X}")).collect()
}

fn with_documents<T>(make: impl FnOnce(&Documents<'_>) -> T) -> T {
    let text = descriptions::text();
    let descriptions = Descriptions::new(&text);
    make(&Documents { types: &types::TYPES, descriptions: &descriptions, version: VERSION })
}

fn describe_all(catalog: &Catalog) -> Vec<GroupVersionResources> {
    let versions = catalog.groups.iter().flat_map(|g| g.versions.iter().map(|v| (&g.name, &v.version)));
    versions.map(|(group, version)| describe(catalog, group, version)).collect()
}

/// What is served of a group version, as documents need it.
fn describe(catalog: &Catalog, group: &str, version: &str) -> GroupVersionResources {
    let served = catalog.group_version(group, version).map_or(&[][..], |v| v.resources.as_slice());
    let resources = served.iter().filter_map(|version| describe_resource(version)).collect();
    GroupVersionResources { group: group.to_owned(), version: version.to_owned(), resources }
}

fn describe_resource(version: &Version) -> Option<Resource> {
    let schema = &version.spec.schema;
    let model = match schema.as_custom() {
        Some(source) => Model::Custom {
            list_kind: version.list_kind.to_string(),
            schema: Arc::new(source.clone()),
            selectable: version.spec.selectable.iter().map(|field| field.label.to_string()).collect(),
        },
        None => Model::BuiltIn(types::named(&version.gvk.api_version(), &version.gvk.kind)?),
    };
    let subresources = &version.spec.subresources;
    Some(Resource {
        plural: version.plural.to_string(),
        namespaced: version.namespaced,
        kind: version.gvk.kind.to_string(),
        verbs: owned(&version.discovered_verbs()),
        model,
        returns_deleted: version.returns_deleted,
        subresources: subresources
            .iter()
            .filter_map(|subresource| describe_subresource(version, subresource))
            .collect(),
    })
}

fn describe_subresource(
    version: &Version,
    subresource: &Subresource,
) -> Option<windlass_apimachinery::openapi::Subresource> {
    let gvk = subresource.kind.as_ref().unwrap_or(&version.gvk);
    let of = |kind: &str| -> Option<Arc<NamedType>> { types::named(&gvk.api_version(), kind) };
    let name = subresource.name.to_string();
    let kind = match name.as_str() {
        "log" => SubresourceKind::Text(of("PodLogOptions")?),
        _ if gvk.kind.ends_with("Options") => {
            SubresourceKind::Connect { options: of(&gvk.kind)?, has_path: name == "proxy" }
        }
        _ if subresource.kind.is_none() => SubresourceKind::Own,
        _ => SubresourceKind::Other(of(&gvk.kind)?),
    };
    let gvk = Gvk { group: gvk.group.to_string(), version: gvk.version.to_string(), kind: gvk.kind.to_string() };
    Some(windlass_apimachinery::openapi::Subresource { name, verbs: owned(&subresource.verbs), gvk, kind })
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::{
        tests::api,
        types::{Definition, Resource, Strategy, TypeSchema, VersionSpec},
    };

    /// A resource that does nothing of its own.
    #[derive(Debug)]
    struct Things;

    impl Strategy for Things {}

    #[test]
    fn a_definition_costs_the_documents_of_its_group_alone() {
        let (api, mut kept) = (api(), Kept::new());
        let current = || api.catalogs().current();
        let put = |group: &'static str| {
            let v1 = VersionSpec::new(
                "v1",
                TypeSchema::custom("Thing".into(), &json!({"type": "object"}), &types::schema("meta/v1.ObjectMeta")),
            );
            let definition = Definition::single(Resource::new(group, "things", "Thing", Things), v1);
            api.catalogs().put(&format!("things.{group}"), definition);
        };
        assert!(kept.update(&current()).len() > 20);
        assert!(kept.update(&current()).is_empty());
        put("one.example.com");
        put("two.example.com");
        assert_eq!(kept.update(&current()), ["apis/one.example.com/v1", "apis/two.example.com/v1"]);
        // Serving it again makes other values of it, which may differ.
        put("two.example.com");
        kept.whole.insert("v2".to_owned(), Vec::new());
        assert_eq!(kept.update(&current()), ["apis/two.example.com/v1"]);
        assert!(kept.whole.is_empty());
        api.catalogs().remove("things.one.example.com");
        kept.whole.insert("v2".to_owned(), Vec::new());
        assert!(kept.update(&current()).is_empty());
        assert!(kept.whole.is_empty() && !kept.groups.contains_key("apis/one.example.com/v1"));
        assert!(kept.groups.contains_key("apis/two.example.com/v1") && kept.groups.contains_key("api/v1"));
    }
}
