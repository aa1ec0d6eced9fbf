//! What is told of files of a volume that are at, above or below each other. Pure.
//!
//! Upstream: `warningsForOverlappingVirtualPaths` (`pkg/api/pod/warnings.go`).

use crate::kinds::shared::field::Field;

/// A file of a volume, and of which source it is; volumes of one source have none.
#[derive(Clone, PartialEq)]
struct File {
    path: String,
    source: String,
}

impl File {
    fn shown(&self) -> String {
        if self.source.is_empty() { format!("{:?}", self.path) } else { format!("{:?} ({})", self.path, self.source) }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (own, others) = (format!("{}/", self.path), format!("{}/", other.path));
        !self.path.is_empty() && !other.path.is_empty() && (own.starts_with(&others) || others.starts_with(&own))
    }
}

fn file(path: &str, source: &str) -> File {
    File { path: path.trim_end_matches('/').to_owned(), source: source.to_owned() }
}

fn files(source: &Field<'_>, shown: &str) -> Vec<File> {
    source.at("items").items().map(|item| file(item.at("path").text(), shown)).collect()
}

/// Each pair that overlaps, the later one first.
fn overlaps(all: &[File]) -> Vec<String> {
    let pairs = all.iter().enumerate().flat_map(|(at, one)| all[..at].iter().map(move |other| (one, other)));
    pairs
        .filter(|(one, other)| one.overlaps(other))
        .map(|(one, other)| format!("{} with {}", one.shown(), other.shown()))
        .collect()
}

/// The files of a source of a projected volume.
fn projected(source: &Field<'_>) -> Vec<File> {
    for (field, kind) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        let of = source.at(field);
        if of.at("items").is_set() {
            return files(&of, &format!("{kind} {:?}", of.at("name").text()));
        }
    }
    if source.below("downwardAPI.items").is_set() {
        return files(&source.at("downwardAPI"), "DownwardAPI");
    }
    let token = source.at("serviceAccountToken");
    if token.is_set() {
        return vec![file(token.at("path").text(), "ServiceAccountToken")];
    }
    let bundle = source.at("clusterTrustBundle");
    if bundle.is_set() {
        let named = if bundle.at("name").is_set() { bundle.at("name") } else { bundle.at("signerName") };
        return vec![file(bundle.at("path").text(), &format!("ClusterTrustBundle {:?}", named.text()))];
    }
    Vec::new()
}

/// The warnings about a volume.
pub(super) fn warnings(volume: &Field<'_>) -> Vec<String> {
    let name = volume.at("name").text();
    let told = |of: String, found: Vec<String>| -> Vec<String> {
        found.into_iter().map(|pair| format!("volume {name:?} ({of}): overlapping paths: {pair}")).collect()
    };
    let map = volume.at("configMap");
    let mut all = told(format!("ConfigMap {:?}", map.at("name").text()), overlaps(&files(&map, "")));
    let secret = volume.at("secret");
    all.extend(told(format!("Secret {:?}", secret.at("secretName").text()), overlaps(&files(&secret, ""))));
    all.extend(told("DownwardAPI".to_owned(), overlaps(&files(&volume.at("downwardAPI"), ""))));
    let mut before: Vec<File> = Vec::new();
    for source in volume.below("projected.sources").items() {
        if source.value.as_object().is_none_or(|fields| fields.values().all(serde_json::Value::is_null)) {
            all.push(format!("volume {name:?} (Projected) has no sources provided"));
        }
        for one in projected(&source) {
            let found = before.iter().filter(|other| one.overlaps(other));
            let found = found.map(|other| format!("{} with {}", one.shown(), other.shown())).collect();
            all.extend(told("Projected".to_owned(), found));
            before.push(one);
        }
    }
    all
}
