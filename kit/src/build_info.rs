//! The version of this program as others read it: at `/version` of the API, and as `kubernetes_build_info` on each page
//! of metrics, where dashboards and the alert KubeVersionMismatch look for it.

use crate::prometheus::{Kind, Text};

/// The version of Kubernetes that this program is, and its own name.
pub const VERSION: &str = "v1.36.2+windlass";

/// The fields of upstream's `version.Info` under the names of the metric's labels, in their order.
#[must_use]
pub fn fields() -> [(&'static str, &'static str); 9] {
    let platform = match std::env::consts::ARCH {
        "aarch64" => "linux/arm64",
        _ => "linux/amd64",
    };
    [
        ("build_date", "1970-01-01T00:00:00Z"),
        ("compiler", "rustc"),
        ("git_commit", ""),
        ("git_tree_state", "clean"),
        ("git_version", VERSION),
        ("go_version", "none"),
        ("major", "1"),
        ("minor", "36"),
        ("platform", platform),
    ]
}

/// One of the [`fields`].
#[must_use]
pub fn field(name: &str) -> &'static str {
    fields().into_iter().find(|(field, _)| *field == name).map_or("", |(_, value)| value)
}

/// Writes the family.
pub fn write(page: &mut Text) {
    page.family("kubernetes_build_info", "The version, as labels.", Kind::Gauge);
    page.sample("kubernetes_build_info", &fields(), 1.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_version_are_those_of_the_whole() {
        let start = format!("v{}.{}.", field("major"), field("minor"));
        assert!(field("git_version").starts_with(&start), "{start}");
        assert_eq!(field("other"), "");
    }
}
