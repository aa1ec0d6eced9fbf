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
    kept(catalog, &path_of(group, version), || {
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

/// What was made for one generation of a catalog: each document takes long to make, is large, and is asked for again by every
/// client that starts.
#[derive(Default)]
struct Kept {
    generation: u64,
    served: Vec<String>,
    /// The hash of the documents of others that are in those of version 2.
    others: String,
    /// The hashes of all documents of version 3 by their paths: clients keep documents by them.
    hashes: BTreeMap<String, String>,
    /// Documents by their paths, compressed.
    documents: BTreeMap<String, Vec<u8>>,
}

/// One lock for all: it is held while documents are built, see `dispatch`.
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// Runs `with` on what is kept of a catalog, which is made if another one was asked for before.
fn with_kept<T>(catalog: &Catalog, with: impl FnOnce(&mut Kept) -> T) -> T {
    let mut kept = KEPT.lock();
    let served: Vec<String> =
        catalog.groups.iter().flat_map(|g| g.versions.iter().map(|v| path_of(&g.name, &v.version))).collect();
    let is_current = |known: &Kept| known.generation == catalog.own_generation && known.served == served;
    if !kept.as_ref().is_some_and(is_current) {
        let mut new = Kept { generation: catalog.own_generation, served, ..Kept::default() };
        with_documents(|documents| {
            for of in describe_all(catalog) {
                let (path, text) = (path_of(&of.group, &of.version), documents.v3(&of).to_string());
                new.hashes.insert(path.clone(), hash_of(text.as_bytes()));
                new.documents.extend(compressed(text.as_bytes()).map(|bytes| (path, bytes)));
            }
        });
        *kept = Some(new);
    }
    with(kept.get_or_insert_default())
}

/// A document of version 2 that is kept, or is made and kept until those of others change.
fn kept_v2(catalog: &Catalog, path: &str, others: &[Arc<OpenApiV2>], make: impl FnOnce() -> Bytes) -> Bytes {
    let hash = hash_of(others.iter().map(|other| other.etag.as_str()).collect::<Vec<_>>().join(" ").as_bytes());
    with_kept(catalog, |kept| {
        if kept.others != hash {
            kept.documents.retain(|path, _| !path.starts_with("v2"));
            kept.others = hash;
        }
    });
    kept(catalog, path, make)
}

/// A document that is kept, or is made and kept.
fn kept(catalog: &Catalog, path: &str, make: impl FnOnce() -> Bytes) -> Bytes {
    with_kept(catalog, |kept| {
        if let Some(document) = kept.documents.get(path).and_then(|bytes| expanded(bytes)) {
            return document;
        }
        let document = make();
        kept.documents.extend(compressed(&document).map(|bytes| (path.to_owned(), bytes)));
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
    with_kept(catalog, |kept| kept.hashes.clone())
}

/// As upstream's: SHA-512 in capital hexadecimal digits.
fn hash_of(bytes: &[u8]) -> String {
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
