//! Volumes that several sources make together. Pure.

use std::collections::BTreeSet;

use super::{files, validate_local_path};
use crate::{apiserver::pipeline::validation::errors::Errors, kinds::shared::field::Field};

const SHORTEST_SECONDS: i64 = 10 * 60;
const LONGEST_SECONDS: i64 = 1 << 32;

/// The sources, in upstream's order.
const SOURCES: [&str; 4] = ["secret", "configMap", "downwardAPI", "serviceAccountToken"];

/// Validates a projected volume; `keeps_tokens` says that tokens may not leave it.
pub(super) fn validate(volume: &Field<'_>, keeps_tokens: bool, errors: &mut Errors) {
    files::mode(&volume.at("defaultMode"), errors);
    let mut seen = BTreeSet::new();
    for source in volume.at("sources").items() {
        for kind in ["secret", "configMap"].map(|kind| source.at(kind)).iter().filter(|kind| kind.is_set()) {
            let name = kind.at("name");
            if name.is_empty() {
                name.required("", errors);
            }
            for item in kind.at("items").items() {
                files::key(&item, errors);
                unlike(volume, item.at("path").text(), name.text(), &mut seen, errors);
            }
        }
        let downward = source.at("downwardAPI");
        for item in downward.at("items").items() {
            // Upstream reports the path of the source instead of its item's.
            files::file(&Field { value: item.value, path: downward.path.clone() }, errors);
            let path = item.at("path").text();
            unlike(volume, path, path, &mut seen, errors);
        }
        token(volume, &source.at("serviceAccountToken"), keeps_tokens, errors);
        if SOURCES.iter().filter(|kind| source.at(kind).is_set()).count() > 1 {
            source.forbidden("may not specify more than 1 volume type per source", errors);
        }
    }
}

/// Refuses a path that another source has.
fn unlike<'a>(volume: &Field<'_>, path: &'a str, shown: &str, seen: &mut BTreeSet<&'a str>, errors: &mut Errors) {
    if !path.is_empty() && !seen.insert(path) {
        errors.invalid_text(&volume.path, shown, "conflicting duplicate paths");
    }
}

fn token(volume: &Field<'_>, token: &Field<'_>, keeps: bool, errors: &mut Errors) {
    if !token.is_set() {
        return;
    }
    let (lasts, path) = (token.at("expirationSeconds"), token.at("path"));
    match lasts.number() {
        Some(seconds) if seconds < SHORTEST_SECONDS => {
            lasts.invalid("may not specify a duration less than 10 minutes", errors);
        }
        Some(seconds) if seconds > LONGEST_SECONDS => {
            lasts.invalid("may not specify a duration larger than 2^32 seconds", errors);
        }
        _ => {}
    }
    // The path is upstream's.
    if path.is_empty() {
        volume.at("path").required("", errors);
    } else if keeps {
        validate_local_path(&volume.at("path").path, path.text(), errors);
    }
}

/// Refuses tokens that leave their volume.
pub(in super::super) fn validate_token_paths(spec: &Field<'_>, errors: &mut Errors) {
    for source in spec.at("volumes").items().flat_map(|volume| volume.below("projected.sources").items()) {
        let token = source.at("serviceAccountToken");
        if token.is_set() {
            validate_local_path(&token.at("path").path, token.at("path").text(), errors);
        }
    }
}
