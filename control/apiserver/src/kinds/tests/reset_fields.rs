//! The fields that a path does not write, of every resource: upstream's `GetResetFields`.

use crate::apiserver::{pipeline::field_manager::reset_fields, tests::api};

/// Group, resource, subresource and fields, where they are not the status, or through `/status` the spec.
const OTHERS: &[(&str, &str, &str, &[&str])] = &[
    ("", "pods", "status", &["spec", "metadata.deletionTimestamp", "metadata.ownerReferences"]),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", "status", &["metadata", "spec"]),
    ("apiregistration.k8s.io", "apiservices", "status", &["metadata", "spec"]),
    ("apps", "deployments", "status", &["spec", "metadata.labels"]),
    ("certificates.k8s.io", "certificatesigningrequests", "", &["spec", "status"]),
    ("certificates.k8s.io", "certificatesigningrequests", "approval", &["spec", "status.certificate"]),
    ("certificates.k8s.io", "certificatesigningrequests", "status", &["spec", "status.conditions"]),
    ("flowcontrol.apiserver.k8s.io", "flowschemas", "status", &["metadata", "spec"]),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", "status", &["metadata", "spec"]),
    ("networking.k8s.io", "servicecidrs", "status", &["metadata", "spec"]),
    ("resource.k8s.io", "resourceclaims", "status", &["metadata", "spec"]),
    ("storage.k8s.io", "volumeattachments", "status", &["metadata", "spec"]),
];

#[test]
fn each_path_leaves_what_it_does_not_write_to_its_owners() {
    let catalog = api().catalogs().current();
    let mut found = 0;
    for version in catalog.all().filter(|version| version.id().is_some()) {
        let subresources = version.spec.subresources.iter().map(|subresource| &*subresource.name);
        for subresource in std::iter::once("").chain(subresources) {
            let of = |row: &&(&str, &str, &str, &[&str])| {
                (row.0, row.1, row.2) == (&*version.gvk.group, &*version.plural, subresource)
            };
            let usual: &[&str] = match subresource {
                "status" => &["spec"],
                "" | "finalize" if version.has_status() => &["status"],
                _ => &[],
            };
            let other = OTHERS.iter().find(of);
            found += usize::from(other.is_some());
            let expected = other.map_or(usual, |row| row.3);
            assert_eq!(reset_fields(version, subresource), expected, "{version:?} {subresource}");
        }
    }
    assert_eq!(found, OTHERS.len(), "every row is of a resource");
}
