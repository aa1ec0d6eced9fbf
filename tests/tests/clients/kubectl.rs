//! kubectl of one version on all types at once: each command gets a list with one object of every type.

use serde_json::{Value, json};
use windlass_tests::Kubectl;

use crate::server::Server;

/// Runs a command on a list, and checks that its output has the expected words once for each of this many objects.
struct Commands<'s> {
    kubectl: Kubectl<'s>,
    count: usize,
}

impl Commands<'_> {
    #[track_caller]
    fn expect(&self, succeeds: bool, words: &str, objects: &Value, arguments: &[&str]) {
        let output = self.kubectl.output(&[arguments, &["-f", "-"]].concat(), &objects.to_string());
        let told = format!("\n{}", if succeeds { &output.out } else { &output.err });
        assert_eq!(
            (output.ok, told.matches(words).count()),
            (succeeds, self.count),
            "kubectl {arguments:?} did not tell {words:?} of each object: {}{}",
            output.out,
            output.err
        );
    }

    #[track_caller]
    fn works(&self, words: &str, objects: &Value, arguments: &[&str]) {
        self.expect(true, words, objects, arguments);
    }

    #[track_caller]
    fn is_refused(&self, words: &str, objects: &Value, arguments: &[&str]) {
        self.expect(false, words, objects, arguments);
    }
}

fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

pub(crate) fn every_type(server: &Server, version: &str) {
    let items = server.objects(&format!("kubectl-{}", version.replace('.', "-")));
    let objects = list(&items);
    let labelled = |value: &str| {
        let with_label = |item: &Value| {
            let mut item = item.clone();
            item["metadata"]["labels"] = json!({"changed": value});
            item
        };
        list(&items.iter().map(with_label).collect::<Vec<_>>())
    };
    let all = Commands { kubectl: server.kubectl().of_version(version), count: items.len() };
    assert!(all.kubectl.run(&["version"]).contains(&format!("Client Version: v{version}")));

    all.works(" created (server dry run)", &objects, &["create", "--dry-run=server"]);
    all.works(" created", &objects, &["create", "--validate=strict"]);
    all.is_refused("(AlreadyExists)", &objects, &["create"]);
    let old = all.kubectl.output(&["get", "-o", "json", "-f", "-"], &objects.to_string());
    let old: Value = serde_json::from_str(&old.out).expect("kubectl prints JSON");
    all.works(" patched", &objects, &["patch", "--type=merge", "-p", r#"{"metadata":{"labels":{"changed":"yes"}}}"#]);
    // Waits by a watch.
    all.works(" condition met", &objects, &["wait", "--for=jsonpath={.metadata.labels.changed}=yes", "--timeout=30s"]);
    all.is_refused("the object has been modified", &old, &["replace"]);
    all.works(" labeled", &objects, &["label", "again=yes"]);

    let other = labelled("other");
    let apply = ["apply", "--server-side", "--field-manager=other"];
    all.is_refused("Apply failed with ", &other, &apply);
    all.works(" serverside-applied", &other, &[&apply[..], &["--force-conflicts"]].concat());
    all.works(" serverside-applied", &labelled("again"), &apply);
    for form in ["wide", "yaml", "name", "jsonpath={.items[*].kind}"] {
        let shown = all.kubectl.output(&["get", "-o", form, "-f", "-"], &objects.to_string());
        assert!(shown.ok && !shown.out.is_empty(), "get -o {form}: {}", shown.err);
    }
    all.works("\nName: ", &objects, &["describe"]);
    // Waits by watches too.
    all.works(" deleted", &objects, &["delete", "--timeout=60s"]);
    all.is_refused(" not found", &objects, &["get"]);
}
