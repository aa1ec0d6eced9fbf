//! Quotas as values: whether a write is within them, what is used after it, and what all objects use. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};
use windlass_kit::quantity::Quantity;

use super::{
    Evaluator, ResourceList, names,
    resource_list::sum,
    scopes::{self, Scope},
};

/// A ResourceQuota.
#[derive(Debug, Clone)]
pub struct Quota {
    name: String,
    scopes: Vec<Scope>,
    /// What may be used, as the controller has seen it.
    hard: ResourceList,
    used: ResourceList,
}

/// A write of an object that is counted.
#[derive(Debug, Clone)]
pub struct Request {
    pub evaluator: Evaluator,
    /// `None` for a new object.
    pub old: Option<Value>,
    /// `None` for an object that is removed.
    pub new: Option<Value>,
    /// Whether it may be refused.
    pub is_limited: bool,
}

impl Quota {
    /// Reads a ResourceQuota.
    pub fn read(object: &Value) -> Self {
        Self {
            name: object["metadata"]["name"].as_str().unwrap_or("").to_owned(),
            scopes: scopes::read(&object["spec"]),
            hard: ResourceList::read(&object["status"]["hard"]),
            used: ResourceList::read(&object["status"]["used"]),
        }
    }

    /// Reads a ResourceQuota as it will be when the controller has seen what may be used of it now.
    pub fn to_come(object: &Value) -> Self {
        let mut quota = Self::read(object);
        quota.hard.0.extend(ResourceList::read(&object["spec"]["hard"]).0);
        quota
    }

    /// What is used of it.
    pub const fn used(&self) -> &ResourceList {
        &self.used
    }

    /// Whether the quota counts an object.
    fn matches(&self, evaluator: &Evaluator, object: &Value) -> bool {
        self.counted(evaluator).next().is_some() && self.scopes.iter().all(|scope| scope.holds(evaluator, object))
    }

    /// The resources of the quota that objects of a kind use.
    fn counted<'a>(&'a self, evaluator: &'a Evaluator) -> impl Iterator<Item = &'a str> {
        self.hard.0.keys().map(String::as_str).filter(|name| evaluator.counts(name))
    }

    /// What an object uses of the quota.
    fn usage(&self, evaluator: &Evaluator, object: Option<&Value>, now: Timestamp) -> ResourceList {
        let object = object.filter(|object| self.matches(evaluator, object));
        let usage = object.map(|object| evaluator.usage(object, now)).unwrap_or_default();
        usage.only(|name| self.hard.0.contains_key(name))
    }

    /// What a write uses more, or less.
    pub fn difference(&self, request: &Request, now: Timestamp) -> ResourceList {
        let usage = |object: Option<&Value>| self.usage(&request.evaluator, object, now);
        usage(request.new.as_ref()).minus(&usage(request.old.as_ref()))
    }

    /// What is used after a write; `None` if a resource that the write needs more of is exceeded. What is not counted yet
    /// stays so.
    pub fn used_after(&self, request: &Request, now: Timestamp) -> Option<ResourceList> {
        let difference = self.difference(request, now);
        if request.is_limited && !self.exceeded(&difference).is_empty() {
            return None;
        }
        let mut used = self.used.clone();
        for (name, amount) in difference.0 {
            if let Some(before) = used.get(&name) {
                let after = sum(before, amount);
                // What was counted wrong is not made worse; the controller counts again.
                used.set(name, if after.is_negative() { Quantity::from_units(0) } else { after });
            }
        }
        Some(used)
    }

    /// The resources of which there is not enough for a difference.
    fn exceeded(&self, difference: &ResourceList) -> Vec<String> {
        let is_exceeded = |(name, more): &(&String, &Quantity)| {
            let used = self.used.get(name).unwrap_or(Quantity::from_units(0));
            let sum = used.plus(**more);
            !more.is_negative() && self.hard.get(name).is_some_and(|hard| sum > hard)
        };
        difference.0.iter().filter(is_exceeded).map(|(name, _)| name.clone()).collect()
    }

    /// Whether what is used is known of each resource that is counted.
    fn is_known(&self, evaluator: &Evaluator) -> bool {
        self.counted(evaluator).all(|name| self.used.get(name).is_some())
    }
}

/// Whether a write is within all quotas of its namespace.
///
/// # Errors
/// The refusal, in upstream's words.
pub fn check(quotas: &[Quota], request: &Request, now: Timestamp) -> Result<(), String> {
    let (evaluator, Some(new)) = (&request.evaluator, &request.new) else { return Ok(()) };
    let matching: Vec<&Quota> = quotas.iter().filter(|quota| quota.matches(evaluator, new)).collect();
    for quota in &matching {
        let why = evaluator.check_stated(new, quota.counted(evaluator));
        why.map_err(|why| format!("failed quota: {}: {why}", quota.name))?;
        if !quota.is_known(evaluator) {
            let resources = names(quota.counted(evaluator));
            return Err(format!("status unknown for quota: {}, resources: {resources}", quota.name));
        }
    }
    let usage = evaluator.usage(new, now);
    let negative: Vec<&str> =
        usage.0.iter().filter(|(_, amount)| amount.is_negative()).map(|(name, _)| name.as_str()).collect();
    if !negative.is_empty() {
        return Err(format!("quota usage is negative for resource(s): {}", names(negative)));
    }
    for quota in matching {
        let difference = quota.difference(request, now);
        let exceeded = quota.exceeded(&difference);
        if !exceeded.is_empty() {
            let only = |list: &ResourceList| list.only(|name| exceeded.iter().any(|one| one == name));
            return Err(format!(
                "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                quota.name,
                only(&difference),
                only(&quota.used),
                only(&quota.hard)
            ));
        }
    }
    Ok(())
}

/// The status of a quota by a count of all objects of its namespace. Of what could not be counted (`None`) the old number
/// stays.
pub fn recount<'a>(
    object: &Value,
    counted: impl IntoIterator<Item = (&'a Evaluator, Option<&'a [Value]>)>,
    now: Timestamp,
) -> Value {
    let old = Quota::read(object);
    let quota = Quota { hard: ResourceList::read(&object["spec"]["hard"]), ..old.clone() };
    let mut used = old.used.only(|name| quota.hard.0.contains_key(name));
    for (evaluator, objects) in counted {
        let Some(objects) = objects else { continue };
        let names = quota.counted(evaluator).map(|name| (name.to_owned(), Quantity::from_units(0)));
        let mut sum = ResourceList(names.collect());
        objects.iter().for_each(|object| sum.add(&quota.usage(evaluator, Some(object), now)));
        used.0.extend(sum.0);
    }
    // An amount that has not changed stays as it is written.
    for (name, amount) in &mut used.0 {
        *amount = old.used.get(name).filter(|old| old == amount).unwrap_or(*amount);
    }
    let mut status = json!({});
    for (field, amounts) in [("hard", object["spec"]["hard"].clone()), ("used", used.write())] {
        if amounts.as_object().is_some_and(|amounts| !amounts.is_empty()) {
            status[field] = amounts;
        }
    }
    status
}
