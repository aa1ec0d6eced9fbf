//! Sequences made by chance from a seed: the same few names again and again, so that one step meets what others have left.

use serde_json::{Value, json};

use crate::{
    side::{JSON, Step},
    written::{MERGE, NODE, PATCH, STRATEGIC, pod, step, within},
};

/// A small generator (Marsaglia's xorshift), so that a sequence can be asked again.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % sides
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// A step of a sequence; `number` makes its name.
pub(crate) fn next(dice: &mut Dice, number: usize) -> Step {
    let name = *dice.of(&["r0", "r1", "r2"]);
    let path = within(&format!("pods/{name}"));
    let who = *dice.of(&["admin", "admin", NODE]);
    let called = |what: &str| format!("random: {what} #{number}");
    let status = format!("{path}/status");
    match dice.below(12) {
        0..3 => step(&called("create"), "admin", "POST", &within("pods"), JSON, pod(name, spec(dice))),
        3 => step(
            &called("labels"),
            who,
            "PATCH",
            &path,
            MERGE,
            json!({"metadata": {"labels": labels(dice), "annotations": labels(dice)}}),
        ),
        4 => step(&called("JSON patch"), "admin", "PATCH", &path, PATCH, operations(dice)),
        5 => step(&called("spec"), "admin", "PATCH", &path, STRATEGIC, json!({"spec": spec(dice)})),
        6..8 => step(&called("status"), who, "PATCH", &status, STRATEGIC, json!({"status": state(dice)})),
        8 => step(&called("status merged"), who, "PATCH", &status, MERGE, json!({"status": state(dice)})),
        9 => {
            let grace = *dice.of(&["", "?gracePeriodSeconds=0", "?gracePeriodSeconds=9", "?gracePeriodSeconds=3600"]);
            step(&called("delete"), who, "DELETE", &format!("{path}{grace}"), JSON, Value::Null)
        }
        10 => {
            let finalizers = dice.of(&[json!(null), json!(["a.io/b"])]).clone();
            step(&called("finalizers"), "admin", "PATCH", &path, MERGE, json!({"metadata": {"finalizers": finalizers}}))
        }
        _ => step(&called("get"), who, "GET", &path, JSON, Value::Null),
    }
}

fn spec(dice: &mut Dice) -> Value {
    let mut spec = json!({"containers": [{"name": *dice.of(&["main", "main", "other"]), "image": *dice.of(&["i", "i:1", "i:latest"])}]});
    if dice.below(3) == 0 {
        let resources = [
            json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
            json!({"requests": {"cpu": "0.5"}, "limits": {"cpu": "500m"}}),
            json!({"requests": {"memory": "1e3"}}),
            json!({}),
        ];
        spec["containers"][0]["resources"] = dice.of(&resources).clone();
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
    for _ in 0..dice.below(3) {
        let (field, value) = dice.of(&fields);
        spec[*field] = value.clone();
    }
    spec
}

fn labels(dice: &mut Dice) -> Value {
    dice.of(&[json!(null), json!({}), json!({"a": "b"}), json!({"a": null, "c": "d"}), json!({"e": ""})]).clone()
}

fn operations(dice: &mut Dice) -> Value {
    dice.of(&[
        json!([{"op": "add", "path": "/metadata/labels/x", "value": "y"}]),
        json!([{"op": "remove", "path": "/metadata/labels/x"}]),
        json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "i:2"}]),
        json!([{"op": "test", "path": "/spec/restartPolicy", "value": "Always"}, {"op": "add", "path": "/metadata/annotations", "value": {"t": "u"}}]),
        json!([{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "k", "operator": "Exists"}}]),
    ])
    .clone()
}

fn state(dice: &mut Dice) -> Value {
    let mut state = json!({"phase": *dice.of(&["Pending", "Running", "Succeeded", "Failed"])});
    let since = json!("2026-01-01T00:00:00Z");
    for _ in 0..dice.below(3) {
        let condition = json!({"type": *dice.of(&["Ready", "Initialized", "x.io/y"]), "status": *dice.of(&["True", "False"]),
                               "lastTransitionTime": since, "lastProbeTime": null});
        state["conditions"] = json!([condition]);
    }
    let run = [
        json!({"running": {"startedAt": since}}),
        json!({"waiting": {"reason": "r"}}),
        json!({"terminated": {"exitCode": 1}}),
        json!({}),
    ];
    if dice.below(2) == 0 {
        state["containerStatuses"] = json!([{"name": "main", "image": "i", "imageID": "", "restartCount": dice.below(3), "ready": false,
                                             "state": dice.of(&run), "lastState": dice.of(&run)}]);
    }
    if dice.below(4) == 0 {
        state["podIPs"] =
            dice.of(&[json!([{"ip": "10.1.0.9"}]), json!([]), json!([{"ip": "10.1.0.9"}, {"ip": "fd00::9"}])]).clone();
    }
    if dice.below(6) == 0 {
        state["startTime"] = since;
    }
    state
}
