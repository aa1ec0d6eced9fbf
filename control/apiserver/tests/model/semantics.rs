//! What the API does with a request: upstream's rules, in as few lines as they fit. Pure. Revisions and uids are known only
//! after the server has chosen them, so that they are numbers of the model's own here: a revision counts the changes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    kinds::{Kind, NODE_NAME, OWNERS, PHASE, Part, Rule, SPEC_GRACE},
    request::{Change, PatchType, Policy, Precondition, Request, UPDATER, Verb},
};

/// The fields of the tables in `kinds` that have a value, by pointer.
pub(crate) type Fields = BTreeMap<&'static str, Value>;

/// The fields of each manager, by its name and whether it applies configurations. None is without fields.
pub(crate) type Managers = BTreeMap<(String, bool), BTreeSet<&'static str>>;

/// What the model knows of an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Object {
    pub(crate) fields: Fields,
    /// Empty where managers are not modelled.
    pub(crate) managers: Managers,
    pub(crate) finalizers: Vec<String>,
    pub(crate) generation: Option<u64>,
    /// The grace period of an object that is being deleted.
    pub(crate) deletion: Option<i64>,
    /// Which creation it is from.
    pub(crate) uid: u64,
    /// The change that wrote it.
    pub(crate) revision: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventType {
    Added,
    Modified,
    Deleted,
}

/// A change as watchers see it. The object of a deletion is the last one that was stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) event: EventType,
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    pub(crate) object: Object,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Object(u16, Object),
    /// Success without an object.
    Done,
    /// The objects of a collection that are deleted, as they were.
    List(Vec<&'static str>),
    Refused(u16, &'static str),
}

const NOT_FOUND: Answer = Answer::Refused(404, "NotFound");
const CONFLICT: Answer = Answer::Refused(409, "Conflict");
const INVALID: Answer = Answer::Refused(422, "Invalid");
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// All objects, and all events so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) objects: BTreeMap<(Kind, &'static str), Object>,
    pub(crate) events: Vec<Event>,
    revision: u64,
    uid: u64,
}

impl Model {
    /// Answers a request, and changes the objects as it asks.
    pub(crate) fn answer(&mut self, request: &Request) -> Answer {
        if !request.dry_run {
            return self.execute(request);
        }
        self.clone().execute(request)
    }

    fn execute(&mut self, request: &Request) -> Answer {
        let stored = self.objects.get(&(request.kind, request.name)).cloned();
        match (&request.verb, stored) {
            (Verb::Create(_), Some(_)) => Answer::Refused(409, "AlreadyExists"),
            (Verb::Create(change), None) => self.create(request, change),
            (Verb::Apply { manager, force, fields }, stored) => self.apply(request, manager, *force, fields, stored),
            (Verb::Update { status, change, precondition }, stored) => {
                self.update(request, *status, change, *precondition, stored)
            }
            (Verb::DeleteCollection { policy }, _) => self.delete_collection(request.kind, *policy),
            (_, None) => NOT_FOUND,
            (Verb::Get, Some(object)) => Answer::Object(200, object),
            (Verb::Patch { kind, status, change, precondition }, Some(old)) => {
                self.patch(request, *kind, *status, change, *precondition, &old)
            }
            (Verb::Delete { policy, grace, precondition }, Some(old)) => {
                if matches!(precondition, Precondition::OtherVersion | Precondition::OtherUid) {
                    return CONFLICT;
                }
                self.delete(request.kind, request.name, &old, *policy, *grace)
            }
        }
    }

    fn create(&mut self, request: &Request, change: &Change) -> Answer {
        let kind = request.kind;
        let mut fields = Fields::new();
        for (pointer, value) in &change.fields {
            // The server alone writes the first status.
            if let Some(value) = value.clone().filter(|_| kind.field(pointer).part != Part::Status) {
                fields.insert(pointer, value);
            }
        }
        match kind {
            Kind::Pod => {
                fields.entry("/spec/containers/0/image").or_insert_with(|| "i:1".into());
                fields.insert(PHASE, "Pending".into());
            }
            Kind::ReplicationController => drop(fields.insert("/status/replicas", 0.into())),
            Kind::ConfigMap | Kind::Lease => {}
        }
        set_defaults(kind, &mut fields);
        let mut object = self.new_object(kind, fields);
        object.finalizers = change.finalizers.iter().flatten().map(|f| (*f).to_owned()).collect();
        update_managers(kind, &Fields::new(), &mut object);
        Answer::Object(201, self.store(EventType::Added, kind, request.name, object))
    }

    fn new_object(&mut self, kind: Kind, fields: Fields) -> Object {
        self.uid += 1;
        let generation = kind.has_generation().then_some(1);
        let (managers, finalizers) = (Managers::new(), Vec::new());
        Object { fields, managers, finalizers, generation, deletion: None, uid: self.uid, revision: 0 }
    }

    /// Applies a configuration: a field with another manager and another value is a conflict, and a field that only this manager
    /// had applied and that is no longer there is removed.
    fn apply(
        &mut self,
        request: &Request,
        manager: &str,
        force: bool,
        fields: &[(&'static str, Value)],
        stored: Option<Object>,
    ) -> Answer {
        let kind = request.kind;
        let mut config: Fields = fields.iter().cloned().collect();
        set_defaults(kind, &mut config);
        let me = (manager.to_owned(), true);
        let Some(old) = stored else {
            let mut object = self.new_object(kind, config.clone());
            object.managers.insert(me, config.into_keys().collect());
            return Answer::Object(201, self.store(EventType::Added, kind, request.name, object));
        };
        let mut new = old.clone();
        let before = new.managers.remove(&me).unwrap_or_default();
        for (pointer, value) in &config {
            if old.fields.get(pointer) == Some(value) {
                continue;
            }
            for managed in new.managers.values_mut() {
                if managed.remove(pointer) && !force {
                    return CONFLICT;
                }
            }
            new.fields.insert(pointer, value.clone());
        }
        for pointer in before {
            let of_another = new.managers.values().any(|managed| managed.contains(pointer));
            if !config.contains_key(pointer) && !of_another {
                new.fields.remove(pointer);
            }
        }
        new.managers.insert(me, config.into_keys().collect());
        new.managers.retain(|_, managed| !managed.is_empty());
        if new == old {
            return Answer::Object(200, new);
        }
        Answer::Object(200, self.store(EventType::Modified, kind, request.name, new))
    }

    fn update(
        &mut self,
        request: &Request,
        status: bool,
        change: &Change,
        precondition: Precondition,
        stored: Option<Object>,
    ) -> Answer {
        let kind = request.kind;
        if status && !kind.has_status() {
            return NOT_FOUND;
        }
        let Some(old) = stored else {
            return if kind.create_on_update() { self.create(request, change) } else { NOT_FOUND };
        };
        match precondition {
            Precondition::None if kind.needs_revision() => return INVALID,
            Precondition::SameUid if kind.needs_revision() => return INVALID,
            Precondition::OtherVersion | Precondition::OtherUid => return CONFLICT,
            _ => {}
        }
        let mut new = old.clone();
        set_all(&mut new.fields, change);
        if let Some(finalizers) = &change.finalizers {
            new.finalizers = finalizers.iter().map(|f| (*f).to_owned()).collect();
        }
        self.replace(request, status, &old, new)
    }

    fn patch(
        &mut self,
        request: &Request,
        patch: PatchType,
        status: bool,
        change: &Change,
        precondition: Precondition,
        old: &Object,
    ) -> Answer {
        if status && !request.kind.has_status() {
            return NOT_FOUND;
        }
        let removes_missing =
            |(pointer, value): &(&str, Option<Value>)| value.is_none() && !old.fields.contains_key(pointer);
        let clears_missing = change.finalizers.as_ref().is_some_and(Vec::is_empty) && old.finalizers.is_empty();
        if patch == PatchType::Json && (change.fields.iter().any(removes_missing) || clears_missing) {
            return INVALID;
        }
        // A JSON patch says nothing of the version.
        match precondition {
            _ if patch == PatchType::Json => {}
            // To a patch the uid is a field that does not change.
            Precondition::OtherUid => return INVALID,
            Precondition::OtherVersion => return CONFLICT,
            _ => {}
        }
        let mut new = old.clone();
        set_all(&mut new.fields, change);
        if let Some(finalizers) = &change.finalizers {
            let wanted = finalizers.iter().map(|f| (*f).to_owned());
            if patch == PatchType::Strategic && !finalizers.is_empty() {
                new.finalizers = merged_set(&old.finalizers, wanted.collect());
            } else {
                new.finalizers = wanted.collect();
            }
        }
        self.replace(request, status, old, new)
    }

    /// Stores a changed object, as far as its path may change it and as it is valid.
    fn replace(&mut self, request: &Request, status: bool, old: &Object, mut new: Object) -> Answer {
        let kind = request.kind;
        for field in kind.fields() {
            let reached = match field.part {
                Part::Metadata => !(status && kind == Kind::Pod && field.pointer == OWNERS),
                Part::Spec => !status,
                Part::Status => status,
            };
            if !reached {
                set(&mut new.fields, field.pointer, old.fields.get(field.pointer).cloned());
            }
        }
        set_defaults(kind, &mut new.fields);
        let invalid = kind.fields().iter().any(|field| {
            let (before, after) = (old.fields.get(field.pointer), new.fields.get(field.pointer));
            let number = |value: Option<&Value>| value.and_then(Value::as_u64);
            match field.rule {
                Rule::Immutable => before != after,
                Rule::Shrinking => before.is_some() && (after.is_none() || number(after) > number(before)),
                Rule::Free | Rule::Required | Rule::Base | Rule::Default(_) => false,
            }
        });
        let adds_finalizer = new.finalizers.iter().any(|f| !old.finalizers.contains(f));
        if invalid || (old.deletion.is_some() && adds_finalizer) {
            return INVALID;
        }
        let spec_changed = kind
            .fields()
            .iter()
            .any(|field| field.part == Part::Spec && old.fields.get(field.pointer) != new.fields.get(field.pointer));
        if spec_changed {
            new.generation = new.generation.map(|generation| generation + 1);
        }
        update_managers(kind, &old.fields, &mut new);
        if new == *old {
            return Answer::Object(200, new);
        }
        if is_finalized(&new) {
            self.remove(kind, request.name, old);
            return Answer::Object(200, new);
        }
        Answer::Object(200, self.store(EventType::Modified, kind, request.name, new))
    }

    fn delete(
        &mut self,
        kind: Kind,
        name: &'static str,
        old: &Object,
        policy: Option<Policy>,
        grace: Option<i64>,
    ) -> Answer {
        let mut new = old.clone();
        match old.deletion {
            None => {
                new.deletion = Some(if kind == Kind::Pod { pod_grace(&old.fields, grace) } else { 0 });
                new.generation = new.generation.map(|generation| generation + 1);
            }
            // A grace period that has begun may only become shorter.
            Some(pending) if pending > 0 => match grace {
                Some(grace) if grace < pending => new.deletion = Some(grace),
                _ => return Answer::Object(200, new),
            },
            Some(_) => {}
        }
        let wanted = match policy {
            Some(Policy::Background) => None,
            Some(Policy::Orphan) => Some(ORPHAN),
            Some(Policy::Foreground) => Some(FOREGROUND),
            // An earlier deletion's policy takes precedence over the default of the kind.
            None => {
                let earlier =
                    new.finalizers.iter().find_map(|f| [ORPHAN, FOREGROUND].into_iter().find(|name| f == name));
                earlier.or((kind == Kind::ReplicationController).then_some(ORPHAN))
            }
        };
        new.finalizers.retain(|f| (f != ORPHAN && f != FOREGROUND) || wanted == Some(f));
        if let Some(wanted) = wanted.filter(|wanted| !new.finalizers.iter().any(|f| f == wanted)) {
            new.finalizers.push(wanted.to_owned());
        }
        if is_finalized(&new) {
            self.remove(kind, name, old);
            return if kind.returns_deleted() { Answer::Object(200, new) } else { Answer::Done };
        }
        if new == *old {
            return Answer::Object(200, new);
        }
        Answer::Object(200, self.store(EventType::Modified, kind, name, new))
    }

    fn delete_collection(&mut self, kind: Kind, policy: Option<Policy>) -> Answer {
        let chosen = |object: &Object| object.fields.get("/metadata/labels/a").is_some_and(|value| value == "1");
        let all: Vec<(&'static str, Object)> = self
            .objects
            .iter()
            .filter(|((of, _), object)| *of == kind && chosen(object))
            .map(|((_, name), object)| (*name, object.clone()))
            .collect();
        for (name, object) in &all {
            self.delete(kind, name, object, policy, None);
        }
        Answer::List(all.into_iter().map(|(name, _)| name).collect())
    }

    fn store(&mut self, event: EventType, kind: Kind, name: &'static str, mut object: Object) -> Object {
        self.revision += 1;
        object.revision = self.revision;
        self.objects.insert((kind, name), object.clone());
        self.events.push(Event { event, kind, name, object: object.clone() });
        object
    }

    fn remove(&mut self, kind: Kind, name: &'static str, old: &Object) {
        self.revision += 1;
        self.objects.remove(&(kind, name));
        let object = Object { revision: self.revision, ..old.clone() };
        self.events.push(Event { event: EventType::Deleted, kind, name, object });
    }
}

fn set(fields: &mut Fields, pointer: &'static str, value: Option<Value>) {
    match value {
        Some(value) => drop(fields.insert(pointer, value)),
        None => drop(fields.remove(pointer)),
    }
}

fn set_all(fields: &mut Fields, change: &Change) {
    for (pointer, value) in &change.fields {
        set(fields, pointer, value.clone());
    }
}

fn set_defaults(kind: Kind, fields: &mut Fields) {
    for field in kind.fields() {
        match field.rule {
            Rule::Default(value) => drop(fields.entry(field.pointer).or_insert_with(|| value.into())),
            Rule::Base => drop(fields.entry(field.pointer).or_insert_with(|| field.value(0))),
            _ => {}
        }
    }
}

/// A writer that changes a field becomes its only manager; an unchanged one keeps its managers.
fn update_managers(kind: Kind, old: &Fields, new: &mut Object) {
    if !kind.is_managed() {
        return;
    }
    let fields = kind.fields().iter().filter(|field| field.is_managed()).map(|field| field.pointer);
    let changed: BTreeSet<&str> = fields.filter(|pointer| old.get(pointer) != new.fields.get(pointer)).collect();
    for managed in new.managers.values_mut() {
        managed.retain(|pointer| !changed.contains(pointer));
    }
    let written = changed.into_iter().filter(|pointer| new.fields.contains_key(pointer));
    new.managers.entry((UPDATER.to_owned(), false)).or_default().extend(written);
    new.managers.retain(|_, managed| !managed.is_empty());
}

/// A set in a strategic merge patch: the names of the patch in its order, and each other one behind the last name of the patch
/// that stood before it.
fn merged_set(old: &[String], patch: Vec<String>) -> Vec<String> {
    let position = |name: &String| old.iter().position(|other| other == name);
    let mut others = old.iter().filter(|name| !patch.contains(name)).peekable();
    let mut merged = Vec::new();
    for name in &patch {
        while let Some(other) = others.next_if(|other| position(name).is_some_and(|at| position(other) < Some(at))) {
            merged.push(other.clone());
        }
        merged.push(name.clone());
    }
    merged.extend(others.cloned());
    merged
}

/// Whether nothing keeps an object that is being deleted.
fn is_finalized(object: &Object) -> bool {
    object.deletion == Some(0) && object.finalizers.is_empty()
}

/// The requested grace period, or that of the spec; a pod that runs nowhere needs none.
fn pod_grace(fields: &Fields, requested: Option<i64>) -> i64 {
    let over = fields.get(PHASE).is_some_and(|phase| phase == "Succeeded");
    if over || !fields.contains_key(NODE_NAME) {
        return 0;
    }
    requested.or_else(|| fields.get(SPEC_GRACE)?.as_i64()).unwrap_or(0)
}
