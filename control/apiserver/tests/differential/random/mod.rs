//! Random request sequences from a seed. They use few names, so that requests meet the objects of earlier ones.

pub(crate) mod others;

use serde_json::{Value, json};

use crate::{
    api_server::{JSON, Step},
    scenario::{MERGE, NODE, PATCH, STRATEGIC, pod, step, within},
};

/// A small random generator (Marsaglia's xorshift), so that a sequence can be repeated.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % sides
    }

    pub(crate) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// A step of a sequence; `number` makes its name.
pub(crate) fn next(rng: &mut Rng, number: usize) -> Step {
    let name = *rng.of(&["r0", "r1", "r2"]);
    let path = within(&format!("pods/{name}"));
    let who = *rng.of(&["admin", "admin", NODE]);
    let called = |what: &str| format!("random: {what} #{number}");
    let status = format!("{path}/status");
    if rng.below(5) < 2 {
        return others::next(rng, number);
    }
    match rng.below(12) {
        0..3 => step(&called("create"), "admin", "POST", &within("pods"), JSON, pod(name, spec(rng))),
        3 => step(
            &called("labels"),
            who,
            "PATCH",
            &path,
            MERGE,
            json!({"metadata": {"labels": labels(rng), "annotations": labels(rng)}}),
        ),
        4 => step(&called("JSON patch"), "admin", "PATCH", &path, PATCH, operations(rng)),
        5 => step(&called("spec"), "admin", "PATCH", &path, STRATEGIC, json!({"spec": spec(rng)})),
        6..8 => step(&called("status"), who, "PATCH", &status, STRATEGIC, json!({"status": state(rng)})),
        8 => step(&called("status merged"), who, "PATCH", &status, MERGE, json!({"status": state(rng)})),
        9 => {
            // A shorter time than that of the spec is not over before the sequence is.
            let grace = *rng.of(&["", "?gracePeriodSeconds=0", "?gracePeriodSeconds=29", "?gracePeriodSeconds=3600"]);
            step(&called("delete"), who, "DELETE", &format!("{path}{grace}"), JSON, Value::Null)
        }
        10 => {
            let finalizers = rng.of(&[json!(null), json!(["a.io/b"])]).clone();
            step(&called("finalizers"), "admin", "PATCH", &path, MERGE, json!({"metadata": {"finalizers": finalizers}}))
        }
        _ => step(&called("get"), who, "GET", &path, JSON, Value::Null),
    }
}

fn spec(rng: &mut Rng) -> Value {
    let mut spec = json!({"containers": [{"name": *rng.of(&["main", "main", "other"]), "image": *rng.of(&["i", "i:1", "i:latest"])}]});
    if rng.below(3) == 0 {
        let resources = [
            json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
            json!({"requests": {"cpu": "0.5"}, "limits": {"cpu": "500m"}}),
            json!({"requests": {"memory": "1e3"}}),
            json!({}),
        ];
        spec["containers"][0]["resources"] = rng.of(&resources).clone();
    }
    let fields = [
        ("restartPolicy", json!("Never")),
        ("terminationGracePeriodSeconds", json!(0)),
        ("hostNetwork", json!(true)),
        ("activeDeadlineSeconds", json!(9)),
        ("enableServiceLinks", json!(false)),
        ("tolerations", json!([{"operator": "Exists"}])),
        ("securityContext", json!({"fsGroup": 5})),
        ("volumes", json!([{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}])),
    ];
    for _ in 0..rng.below(3) {
        let (field, value) = rng.of(&fields);
        spec[*field] = value.clone();
    }
    spec
}

fn labels(rng: &mut Rng) -> Value {
    rng.of(&[json!(null), json!({}), json!({"a": "b"}), json!({"a": null, "c": "d"}), json!({"e": ""})]).clone()
}

fn operations(rng: &mut Rng) -> Value {
    rng.of(&[
        json!([{"op": "add", "path": "/metadata/labels/x", "value": "y"}]),
        json!([{"op": "remove", "path": "/metadata/labels/x"}]),
        json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "i:2"}]),
        json!([{"op": "test", "path": "/spec/restartPolicy", "value": "Always"}, {"op": "add", "path": "/metadata/annotations", "value": {"t": "u"}}]),
        json!([{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "k", "operator": "Exists"}}]),
    ])
    .clone()
}

fn state(rng: &mut Rng) -> Value {
    let mut state = json!({"phase": *rng.of(&["Pending", "Running", "Succeeded", "Failed"])});
    let since = json!("2026-01-01T00:00:00Z");
    for _ in 0..rng.below(3) {
        let condition = json!({"type": *rng.of(&["Ready", "Initialized", "x.io/y"]), "status": *rng.of(&["True", "False"]),
                               "lastTransitionTime": since, "lastProbeTime": null});
        state["conditions"] = json!([condition]);
    }
    let run = [
        json!({"running": {"startedAt": since}}),
        json!({"waiting": {"reason": "r"}}),
        json!({"terminated": {"exitCode": 1}}),
        json!({}),
    ];
    if rng.below(2) == 0 {
        state["containerStatuses"] = json!([{"name": "main", "image": "i", "imageID": "", "restartCount": rng.below(3), "ready": false,
                                             "state": rng.of(&run), "lastState": rng.of(&run)}]);
    }
    if rng.below(4) == 0 {
        state["podIPs"] =
            rng.of(&[json!([{"ip": "10.1.0.9"}]), json!([]), json!([{"ip": "10.1.0.9"}, {"ip": "fd00::9"}])]).clone();
    }
    if rng.below(6) == 0 {
        state["startTime"] = since;
    }
    state
}
