//! Upstream's own end-to-end suite, by group.

use std::process::Command;

use crate::judge::{Node, part, text};

/// Groups of the suite, with a regular expression for the names of their tests.
pub(crate) const GROUPS: [(&str, &str); 9] = [
    ("webhooks", r"\[sig-api-machinery\] (AdmissionWebhook|CustomResourceConversionWebhook)"),
    ("policies", r"\[sig-api-machinery\] (Validating|Mutating)AdmissionPolicy"),
    (
        "definitions",
        r"\[sig-api-machinery\] (CRDValidation|CustomResource(Definition|FieldSelectors|PublishOpenAPI|Validation))",
    ),
    ("field_validation", r"\[sig-api-machinery\] FieldValidation"),
    ("discovery", r"\[sig-api-machinery\] (Discovery|AggregatedDiscovery|server version)"),
    ("apply", r"\[sig-api-machinery\] ServerSideApply"),
    ("watches", r"\[sig-api-machinery\] Watchers"),
    ("aggregation", r"\[sig-api-machinery\] (Aggregator|OpenAPIV3)"),
    ("network_policies", r"\[sig-network\] Netpol( API)? "),
];
/// What the suite's typed clients send and take.
pub(crate) const CONTENT_TYPES: [(&str, &str); 2] = [("protobuf", PROTOBUF), ("json", "application/json")];
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// What upstream itself does not ask of every cluster: tests that it calls unreliable, or of what is off by default.
/// NetworkPolicies are such a feature, and this node has it.
const SKIPPED: &str = r"\[Flaky\]|\[Feature:([^N]|N[^e]|Ne[^t])|\[Alpha\]";

/// The suite on a node, without a choice of tests.
pub(crate) fn command(node: &Node, content_type: &str) -> Command {
    let mut command = node.testbed.command(text(&part("e2e.test")));
    command
        .args(["--provider=skeleton", "--ginkgo.no-color", "--ginkgo.v"])
        .arg(format!("--kubeconfig={}", node.testbed.windlass().kubeconfig().display()))
        .arg(format!("--kube-api-content-type={content_type}"));
    command
}

/// All tests of the group pass, and there are some.
pub(crate) fn passes(node: &Node, focus: &str, content_type: &str) {
    let mut suite = command(node, content_type);
    suite.arg(format!("--ginkgo.focus={focus}")).arg(format!("--ginkgo.skip={SKIPPED}"));
    let output = suite.output().expect("the suite starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    let counts = printed.lines().find(|line| line.contains(" Passed | ")).unwrap_or("it has counted no test");
    let failures: Vec<&str> = printed.lines().filter(|line| line.contains("[FAIL]")).collect();
    let end = &printed[printed.floor_char_boundary(printed.len().saturating_sub(4000))..];
    assert!(output.status.success(), "{counts}\n{}\n{end}", failures.join("\n"));
    assert!(!counts.contains(" 0 Passed"), "no test of the suite is called {focus}: {counts}");
}
