//! Random applies, patches and updates by several managers, on few objects with few fields: owners and conflicts agree.

use serde_json::{Map, Value, json};

use crate::{
    api_server::{JSON, Step},
    random::Rng,
    scenario::{APPLY, MERGE, STRATEGIC, step, within},
};

/// A step of a sequence; `number` makes its name.
pub(crate) fn next(rng: &mut Rng, number: usize) -> Step {
    let (plural, kind) = *rng.of(&[("configmaps", "ConfigMap"), ("pods", "Pod")]);
    let name = *rng.of(&["m0", "m1"]);
    let (all, path) = (within(plural), within(&format!("{plural}/{name}")));
    let manager = *rng.of(&["a", "b", "c"]);
    let called = |what: &str| format!("random: {what} of {kind} by {manager} #{number}");
    let by = |path: &str| format!("{path}?fieldManager={manager}");
    let object = |rng: &mut Rng, whole: bool| {
        let mut object = content(rng, kind, whole);
        object["apiVersion"] = json!("v1");
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(name);
        object
    };
    match rng.below(10) {
        0 => step(&called("create"), "admin", "POST", &by(&all), JSON, object(rng, true)),
        1 => step(&called("merge"), "admin", "PATCH", &by(&path), MERGE, content(rng, kind, false)),
        2 => step(&called("strategic"), "admin", "PATCH", &by(&path), STRATEGIC, content(rng, kind, false)),
        3 => step(&called("delete"), "admin", "DELETE", &format!("{path}?gracePeriodSeconds=0"), JSON, Value::Null),
        4..7 => {
            // A pod cannot do with some of its fields: more of them are created whole.
            let force = format!("{}&force=true", by(&path));
            step(&called("apply by force"), "admin", "PATCH", &force, APPLY, object(rng, kind == "Pod"))
        }
        _ => step(&called("apply"), "admin", "PATCH", &by(&path), APPLY, object(rng, false)),
    }
}

/// Some of the fields of a kind.
fn content(rng: &mut Rng, kind: &str, whole: bool) -> Value {
    let mut out = json!({"metadata": {}});
    if rng.below(2) == 0 {
        out["metadata"]["labels"] = some(rng, &["l", "m", "n"]);
    }
    // A pod that is being deleted is refused new ones in other words.
    if kind != "Pod" && rng.below(3) == 0 {
        out["metadata"]["finalizers"] = rng.of(&[json!(["a.io/a"]), json!(["b.io/b", "a.io/a"])]).clone();
    }
    match kind {
        "ConfigMap" if whole || rng.below(3) > 0 => out["data"] = some(rng, &["k", "l", "m"]),
        "Pod" if whole || rng.below(4) == 0 => {
            let container = json!({"name": "c", "image": *rng.of(&["i", "i", "j"]),
                "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}]});
            out["spec"] = json!({"containers": [container], "automountServiceAccountToken": false});
        }
        _ => {}
    }
    out
}

/// Some entries of a map.
fn some(rng: &mut Rng, names: &[&str]) -> Value {
    let mut out = Map::new();
    for name in names {
        if rng.below(2) == 0 {
            out.insert((*name).to_owned(), json!(*rng.of(&["1", "2"])));
        }
    }
    if out.is_empty() {
        out.insert(names[0].to_owned(), json!("1"));
    }
    Value::Object(out)
}
