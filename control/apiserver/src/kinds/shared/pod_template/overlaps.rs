//! Paths of one volume that hide each other (upstream: `warningsForOverlappingVirtualPaths`). Pure.

use crate::kinds::shared::field::Field;

/// A path and its source, which is shown if a volume has several sources.
struct Place {
    path: String,
    source: String,
}

impl Place {
    fn new(path: &str, source: &str) -> Self {
        Self { path: path.trim_end_matches('/').to_owned(), source: source.to_owned() }
    }

    fn shown(&self) -> String {
        if self.source.is_empty() { format!("{:?}", self.path) } else { format!("{:?} ({})", self.path, self.source) }
    }

    /// Whether one is the other, or below it.
    fn hides(&self, other: &Self) -> bool {
        let (own, other) = (format!("{}/", self.path), format!("{}/", other.path));
        own.starts_with(&other) || other.starts_with(&own)
    }
}

/// The warnings about the volumes of a pod.
pub(super) fn warnings(volumes: &Field<'_>) -> Vec<String> {
    volumes.items().flat_map(|volume| of_volume(&volume)).collect()
}

fn of_volume(volume: &Field<'_>) -> Vec<String> {
    let name = volume.at("name").text();
    let mut found = Vec::new();
    for (field, called, named) in
        [("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"), ("downwardAPI", "DownwardAPI", "")]
    {
        let source = volume.at(field);
        let shown = shown(called, source.at(named).text(), named);
        let overlaps = overlaps(items(&source, ""));
        found.extend(overlaps.iter().map(|two| format!("volume {name:?} ({shown}): overlapping paths: {two}")));
    }
    let sources = volume.at("projected").at("sources");
    let empty = sources.items().filter(|source| source.value.as_object().is_none_or(serde_json::Map::is_empty));
    let placed = sources.items().flat_map(|source| projected(&source)).collect();
    found.extend(empty.map(|_| format!("volume {name:?} (Projected) has no sources provided")));
    let overlaps = overlaps(placed);
    found.extend(overlaps.iter().map(|two| format!("volume {name:?} (Projected): overlapping paths: {two}")));
    found
}

fn shown(called: &str, name: &str, named: &str) -> String {
    if named.is_empty() { called.to_owned() } else { format!("{called} {name:?}") }
}

fn items(source: &Field<'_>, shown: &str) -> Vec<Place> {
    source.at("items").items().map(|item| Place::new(item.at("path").text(), shown)).collect()
}

/// Where a source of a projected volume writes.
fn projected(source: &Field<'_>) -> Vec<Place> {
    for (field, called, named) in
        [("configMap", "ConfigMap", "name"), ("secret", "Secret", "name"), ("downwardAPI", "DownwardAPI", "")]
    {
        let one = source.at(field);
        if one.at("items").is_set() {
            return items(&one, &shown(called, one.at(named).text(), named));
        }
    }
    let token = source.at("serviceAccountToken");
    if token.is_set() {
        return vec![Place::new(token.at("path").text(), "ServiceAccountToken")];
    }
    let bundle = source.at("clusterTrustBundle");
    if bundle.is_set() {
        let name = if bundle.at("name").is_set() { bundle.at("name") } else { bundle.at("signerName") };
        return vec![Place::new(bundle.at("path").text(), &format!("ClusterTrustBundle {:?}", name.text()))];
    }
    let certificate = source.at("podCertificate");
    let files = [
        ("certificateChainPath", "PodCertificate chain"),
        ("keyPath", "PodCertificate key"),
        ("credentialBundlePath", "PodCertificate credential bundle"),
    ];
    let files = files.map(|(field, called)| Place::new(certificate.at(field).text(), called));
    files.into_iter().filter(|file| !file.path.is_empty()).collect()
}

/// Each path with those before it that it hides.
fn overlaps(places: Vec<Place>) -> Vec<String> {
    let mut found = Vec::new();
    for (at, place) in places.iter().enumerate().filter(|(_, place)| !place.path.is_empty()) {
        let before = places[..at].iter().filter(|other| !other.path.is_empty() && place.hides(other));
        found.extend(before.map(|other| format!("{} with {}", place.shown(), other.shown())));
    }
    found
}
