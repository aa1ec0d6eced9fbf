//! Names of definitions, operations and tags.

/// The name of a built-in type's definition: `core/v1.Pod` → `io.k8s.api.core.v1.Pod`.
pub(super) fn definition(go_type: &str) -> String {
    let (package, name) = go_type.rsplit_once('.').unwrap_or(("", go_type));
    let (group, version) = package.split_once('/').unwrap_or(("", package));
    let prefix = match (group, version) {
        ("meta", _) => "io.k8s.apimachinery.pkg.apis",
        ("api", "resource") | ("util", "intstr") | ("", "runtime") => "io.k8s.apimachinery.pkg",
        ("apiextensions", _) => "io.k8s.apiextensions-apiserver.pkg.apis",
        ("apiregistration", _) => "io.k8s.kube-aggregator.pkg.apis",
        ("metrics", _) => "io.k8s.metrics.pkg.apis",
        _ => "io.k8s.api",
    };
    let package = package.replace('/', ".");
    format!("{prefix}.{package}.{name}")
}

/// The name of a custom type's definition: group `stable.example.com` → `com.example.stable.v1.CronTab`.
pub(super) fn custom_definition(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

/// The part of a group in names: `rbac.authorization.k8s.io` → `rbacAuthorization`, the core group → `core`.
fn group_words(group: &str) -> String {
    if group.is_empty() {
        return "core".to_owned();
    }
    let mut words = group.strip_suffix(".k8s.io").unwrap_or(group).split('.');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &capital(word))
}

/// The tag of a group version: `rbacAuthorization_v1`.
pub(super) fn tag(group: &str, version: &str) -> String {
    format!("{}_{version}", group_words(group))
}

/// The part of a group version in operation ids: `RbacAuthorizationV1`.
pub(super) fn operation_part(group: &str, version: &str) -> String {
    capital(&group_words(group)) + &capital(version)
}

/// A word with a capital first letter.
pub(super) fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The article of a kind, as upstream chooses it.
pub(super) fn article(kind: &str) -> &'static str {
    if kind.starts_with(['A', 'E', 'I', 'O', 'U', 'a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}
