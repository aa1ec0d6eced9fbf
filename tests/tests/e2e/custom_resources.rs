//! Custom resources as kubectl uses them: defined, explained, created, shown, scaled and deleted, and there again after a
//! restart.

use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: crontabs, singular: crontab, kind: CronTab, shortNames: [ct], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What runs, and when.
            required: [cronSpec]
            properties:
              cronSpec: {type: string, description: The schedule., pattern: '^[0-9*/ ]+$'}
              image: {type: string, default: "busybox:1"}
              replicas: {type: integer, minimum: 0, default: 1}
          status:
            type: object
            properties:
              replicas: {type: integer}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Spec, type: string, jsonPath: .spec.cronSpec}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
"#;

const CRONTAB: &str = r#"
apiVersion: stable.example.com/v1
kind: CronTab
metadata: {name: nightly, namespace: default}
spec: {cronSpec: "0 3 * * *"}
"#;

#[test]
fn a_custom_resource_works_with_kubectl_as_soon_as_it_is_established() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    assert!(kubectl.apply(DEFINITION).contains("crontabs.stable.example.com created"));
    let definition = "crd/crontabs.stable.example.com";
    let _ = kubectl.run(&["wait", definition, "--for=condition=Established", "--timeout=30s"]);
    assert!(kubectl.run(&["explain", "crontab.spec.cronSpec"]).contains("The schedule."));
    assert!(kubectl.apply(CRONTAB).contains("crontab.stable.example.com/nightly created"));
    let shown = kubectl.run(&["get", "ct"]);
    let row: Vec<&str> =
        shown.lines().nth(1).unwrap_or_default().split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
    assert_eq!(row, ["nightly", "0 3 * * *", "1"], "{shown}");
    assert_eq!(kubectl.run(&["get", "ct/nightly", "-o", "jsonpath={.spec.image}"]), "busybox:1");
    let _ = kubectl.run(&["scale", "ct/nightly", "--replicas=3"]);
    assert_eq!(kubectl.run(&["get", "ct/nightly", "-o", "jsonpath={.spec.replicas}"]), "3");
    let wrong = kubectl.output(&["apply", "-f", "-"], &CRONTAB.replace("0 3", "at noon"));
    assert!(!wrong.ok && wrong.err.contains("spec.cronSpec"), "{wrong:?}");
    let unknown = kubectl.output(&["apply", "-f", "-"], &CRONTAB.replace("spec: {", "spec: {colour: red, "));
    assert!(!unknown.ok && unknown.err.contains("unknown field \"spec.colour\""), "{unknown:?}");

    windlass.kill();
    let kubectl = windlass.up();
    assert!(kubectl.run(&["get", "crontabs"]).contains("nightly"));
    let _ = kubectl.run(&["delete", definition]);
    eventually(DEFAULT_TIMEOUT, "the resource is not served any more", || {
        let served =
            kubectl.output(&["get", "crontabs"], "").ok || kubectl.run(&["api-resources"]).contains("crontabs");
        anyhow::ensure!(!served, "crontabs are still served");
        Ok(())
    });
}
