//! Priority: a pod's number and whether it preempts others come from its class; one class at most is the default.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    kinds::scheduling::priority_class::SYSTEM,
    store::{Key, ResourceId, Store},
};

/// What a pod without a class does, and one of a class that does not say.
const PREEMPTS: &str = "PreemptLowerPriority";
/// What the JSON of a default class has; others need not be decoded.
const IS_DEFAULT: &[u8] = b"\"globalDefault\":true";

/// Sets number and policy, and refuses a second default.
#[derive(Debug)]
pub(super) struct Priority {
    store: Store,
    classes: ResourceId,
}

impl Priority {
    pub(super) fn new(store: &Store) -> Self {
        Self { store: store.clone(), classes: store.resource("priorityclasses.scheduling.k8s.io") }
    }

    /// The default class; of several the one with the lowest value.
    fn default_class(&self) -> Option<Value> {
        let (classes, _) = self.store.list(self.classes, None);
        let marked =
            classes.iter().filter(|class| class.bytes.windows(IS_DEFAULT.len()).any(|part| part == IS_DEFAULT));
        let defaults = marked.map(|class| class.value()).filter(|class| class["globalDefault"] == true);
        defaults.min_by_key(|class| class["value"].as_i64())
    }

    /// The class of a pod, or what those without one have.
    fn class_of(&self, pod: &Value) -> Result<Value, String> {
        let name = pod["spec"]["priorityClassName"].as_str().unwrap_or("");
        if name.is_empty() {
            return Ok(self.default_class().unwrap_or_else(|| json!({"value": 0, "preemptionPolicy": PREEMPTS})));
        }
        let key = Key { namespace: String::new(), name: name.to_owned() };
        if let Some(class) = self.store.get(self.classes, &key) {
            return Ok(class.value());
        }
        // The system's own pods do not wait for their classes.
        let system = SYSTEM.iter().find(|(system, _)| *system == name);
        system
            .map(|(name, value)| json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": PREEMPTS}))
            .ok_or_else(|| format!("no PriorityClass with name {name} was found"))
    }
}

#[async_trait]
impl AdmissionPlugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        if !attributes.is_core("pods") || attributes.target.subresource.is_some() || !object["spec"].is_object() {
            return Ok(());
        }
        if attributes.operation == Operation::Update {
            attributes.old.iter().for_each(|old| keep(old, object));
            return Ok(());
        }
        let set = self.class_of(object).and_then(|class| set_priority(&class, object));
        set.map_err(|why| attributes.forbidden(object, &why))
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        if !attributes.target.is("scheduling.k8s.io", "priorityclasses") || object["globalDefault"] != true {
            return Ok(());
        }
        let is_new = attributes.operation == Operation::Create;
        let other = self.default_class().map(|class| class["metadata"]["name"].clone());
        match other.filter(|name| is_new || *name != object["metadata"]["name"]) {
            None => Ok(()),
            Some(name) => {
                let name = name.as_str().unwrap_or("");
                let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
                Err(attributes.forbidden(object, &why))
            }
        }
    }
}

/// An update that leaves the priority out does not change it. Pure.
fn keep(old: &Value, pod: &mut Value) {
    for field in ["priority", "preemptionPolicy"] {
        if pod["spec"][field].is_null() && !old["spec"][field].is_null() {
            pod["spec"][field] = old["spec"][field].clone();
        }
    }
}

/// Sets class, priority and policy. Clients may not choose others: pods are preempted by them. Pure.
fn set_priority(class: &Value, pod: &mut Value) -> Result<(), String> {
    let spec = &mut pod["spec"];
    if spec["priorityClassName"].as_str().unwrap_or("").is_empty() && class["metadata"]["name"].is_string() {
        spec["priorityClassName"] = class["metadata"]["name"].clone();
    }
    let priority = class["value"].as_i64().unwrap_or(0);
    let policy = class["preemptionPolicy"].as_str().unwrap_or(PREEMPTS);
    let computed = "must not be provided in pod spec; priority admission controller computed";
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        return Err(format!(
            "the integer value of priority ({given}) {computed} {priority} from the given PriorityClass name"
        ));
    }
    spec["priority"] = json!(priority);
    if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != policy) {
        return Err(format!(
            "the string value of PreemptionPolicy ({given}) {computed} {policy} from the given PriorityClass name"
        ));
    }
    spec["preemptionPolicy"] = json!(policy);
    Ok(())
}
