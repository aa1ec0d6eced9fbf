//! The cache of NetworkPolicies, namespaces and pods, and by which of them which pods are selected. A change is looked
//! at by what it may concern alone: a pod by the selectors in use, a policy by the pods of its namespace on this node.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use windlass_kit::{announced_pod::AnnouncedPod, pod_interface::host_interface};

use super::{
    objects::{self, NamedPort, PodFacts},
    policy::{Namespaces, Pods, Policy},
    profile::{Compiled, Profile, compile},
    rules::{DIRECTIONS, set_suffix},
    sets::{Entry, IpSet, SetKind},
};
use crate::model::{Family, Protocol};

/// Namespace and name.
type Id = (Arc<str>, Arc<str>);
/// Namespace and name of a pod.
pub type PodId = Id;

/// What the entries of a set of pods are: of all, their addresses, or of those with a named port, that port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Selected {
    pub(super) pods: Pods,
    pub(super) port: Option<(Protocol, Arc<str>)>,
}

/// The entries of a set by family, each with the number of pods that have it.
pub(super) type Entries = Arc<BTreeMap<Entry, usize>>;

#[derive(Debug, Clone)]
pub(super) struct PodState {
    pub(super) facts: PodFacts,
    /// Of a pod of this node: the policies of its namespace that select it.
    pub(super) policies: BTreeSet<Arc<str>>,
    /// And what they make of it in each direction.
    pub(super) profiles: Profiles,
}

/// The profiles of a pod: one of each direction at most.
type Profiles = [Option<Arc<Profile>>; 2];

/// A set of pods that rules of this node name.
#[derive(Debug, Clone)]
struct SelectedSet {
    of: Arc<Selected>,
    /// Its names, by family.
    names: [String; 2],
    entries: [Entries; 2],
}

/// What the pod network says of a pod that it connects.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Announced {
    uid: String,
    addresses: Vec<IpAddr>,
}

/// All policies, namespaces and pods.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// `None`: every node's pods are judged.
    node: Option<Box<str>>,
    policies: BTreeMap<Id, Policy>,
    namespaces: BTreeMap<Arc<str>, BTreeMap<String, String>>,
    pods: BTreeMap<Id, PodState>,
    /// Addresses of pods of this node that the API does not show yet.
    announced: BTreeMap<Id, Announced>,
    /// Pods of this node whose addresses are free again, with the uids that the API shows them with: what it still shows
    /// of their addresses may be another pod's.
    ended: BTreeMap<Id, String>,
    /// Sets that rules of this node name, by their names without the family.
    selected: BTreeMap<Arc<str>, SelectedSet>,
    /// What the policies of the profiles in use come to.
    compiled: BTreeMap<Arc<Profile>, Arc<Compiled>>,
    /// Whether the sets that are named may be others than the selected ones.
    is_selection_stale: bool,
    changed: bool,
}

fn id(meta: &ObjectMeta) -> Id {
    (meta.namespace.as_deref().unwrap_or_default().into(), meta.name.as_deref().unwrap_or_default().into())
}

/// All names of one namespace.
fn of_namespace<'a, T>(all: &'a BTreeMap<Id, T>, namespace: &'a str) -> impl Iterator<Item = (&'a Id, &'a T)> {
    let first: Id = (namespace.into(), "".into());
    all.range(first..).take_while(move |((of, _), _)| **of == *namespace)
}

impl Cluster {
    /// Without any object. Pods of `node` are those whose packets this node judges.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self { node: Some(node.into()), ..Self::default() }
    }

    /// As all nodes together see it.
    #[must_use]
    pub fn of_all_nodes() -> Self {
        Self::default()
    }

    /// Adds the namespaces of pods that are not known, with the label that the API gives each.
    pub fn name_namespaces(&mut self) {
        let names: BTreeSet<Arc<str>> = self.pods.keys().map(|(namespace, _)| namespace.clone()).collect();
        for name in names {
            let labels = || [("kubernetes.io/metadata.name".to_owned(), name.to_string())].into();
            self.namespaces.entry(name.clone()).or_insert_with(labels);
        }
    }

    /// Whether this node judges the packets of a pod.
    fn is_judged(&self, facts: &PodFacts) -> bool {
        self.node.as_ref().is_none_or(|node| *node == facts.node)
    }

    /// Whether anything changed that rules or sets may depend on, since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// The key of an object for the functions that retain those of a list.
    #[must_use]
    pub fn key(meta: &ObjectMeta) -> (Arc<str>, Arc<str>) {
        id(meta)
    }

    /// Adds or updates a policy.
    pub fn put_policy(&mut self, object: &objects::NetworkPolicy) {
        let (id, policy) = (id(&object.metadata), Policy::of(object));
        if self.policies.get(&id) == Some(&policy) {
            return;
        }
        if policy.unreadable {
            tracing::warn!(
                policy = %format_args!("{}/{}", id.0, id.1),
                "a part of this NetworkPolicy cannot be read; that part allows nothing"
            );
        }
        self.policies.insert(id.clone(), policy);
        self.select_policy(&id);
    }

    /// Finds the pods of this node that a policy selects, which is new, changed or gone.
    fn select_policy(&mut self, id: &Id) {
        let Self { node, policies, pods, .. } = self;
        let policy = policies.get(id);
        for ((_, _), pod) in pods.range_mut((id.0.clone(), "".into())..).take_while(|((of, _), _)| *of == id.0) {
            let is_judged = node.as_ref().is_none_or(|node| *node == pod.facts.node);
            let is_selected = is_judged && policy.is_some_and(|policy| policy.selects.matches(&pod.facts.labels));
            let was_selected = match is_selected {
                true => !pod.policies.insert(id.1.clone()),
                false => pod.policies.remove(&id.1),
            };
            if is_selected || was_selected {
                pod.profiles = profiles(policies, &id.0, &pod.policies);
            }
        }
        let before = self.compiled.len();
        self.compiled.retain(|profile, _| profile.namespace != id.0 || !profile.policies.contains(&id.1));
        self.is_selection_stale |= self.compiled.len() != before;
        self.changed = true;
    }

    /// Removes a policy.
    pub fn delete_policy(&mut self, meta: &ObjectMeta) {
        self.remove_policy(&id(meta));
    }

    fn remove_policy(&mut self, id: &Id) {
        if self.policies.remove(id).is_some() {
            self.select_policy(id);
        }
    }

    /// Adds or updates a namespace.
    pub fn put_namespace(&mut self, object: &objects::Namespace) {
        let name: Arc<str> = object.metadata.name.as_deref().unwrap_or_default().into();
        let labels = object.metadata.labels.clone().unwrap_or_default();
        if self.namespaces.insert(name.clone(), labels.clone()) != Some(labels) {
            self.select_namespace(&name);
        }
    }

    /// Removes a namespace.
    pub fn delete_namespace(&mut self, meta: &ObjectMeta) {
        let name = meta.name.as_deref().unwrap_or_default();
        if self.namespaces.remove(name).is_some() {
            self.select_namespace(name);
        }
    }

    /// The labels of a namespace changed: its pods may be in other sets.
    fn select_namespace(&mut self, namespace: &str) {
        // Whatever it was before: the set is made from all pods when it is wanted.
        self.selected.retain(|_, set| !matches!(set.of.pods.namespaces, Namespaces::Matching(_)));
        self.is_selection_stale = true;
        self.changed |= of_namespace(&self.pods, namespace).next().is_some();
    }

    /// Adds or updates a pod.
    pub fn put_pod(&mut self, object: &objects::Pod) {
        let id = id(&object.metadata);
        match object.facts() {
            Some(facts) => self.put_facts(&id, facts),
            None => self.remove_pod(&id),
        }
    }

    /// A pod of this node is about to use its addresses.
    pub fn announce(&mut self, pod: &AnnouncedPod) {
        let id: Id = (pod.namespace.as_str().into(), pod.name.as_str().into());
        let announced = Announced { uid: pod.uid.clone(), addresses: pod.addresses.clone() };
        self.announced.insert(id.clone(), announced);
        self.ended.remove(&id);
        let named = pod.ports.iter().filter_map(|(name, protocol, number)| {
            Some(NamedPort { name: name.as_str().into(), protocol: Protocol::parse(Some(protocol))?, number: *number })
        });
        let facts = PodFacts {
            labels: pod.labels.clone(),
            addresses: Vec::new(),
            ports: named.collect(),
            node: self.node.clone().unwrap_or_default(),
            uid: pod.uid.clone(),
            interface: String::new(),
        };
        self.put_facts(&id, facts);
    }

    /// The addresses that were announced of the pod of this uid are no longer its own.
    pub fn withdraw(&mut self, uid: &str) {
        let Some(id) = self.announced.iter().find(|(_, of)| of.uid == uid).map(|(id, _)| id.clone()) else { return };
        self.announced.remove(&id);
        if let Some(pod) = self.pods.get(&id) {
            let facts = pod.facts.clone();
            self.ended.insert(id.clone(), facts.uid.clone());
            self.put_facts(&id, facts);
        }
    }

    fn put_facts(&mut self, id: &Id, mut facts: PodFacts) {
        match self.ended.get(id) {
            Some(uid) if *uid == facts.uid => facts.addresses.clear(),
            Some(_) => drop(self.ended.remove(id)),
            None => {}
        }
        if let Some(announced) = self.announced.get(id) {
            facts.addresses.extend(&announced.addresses);
            facts.addresses.sort_unstable();
            facts.addresses.dedup();
            // A mirror pod has a uid of its own, and its pod's link is named by the pod's.
            facts.interface = host_interface(&announced.uid);
        }
        let is_local = self.is_judged(&facts);
        // Without an address it is in no set; of this node it has rules before it has one.
        if facts.addresses.is_empty() && !is_local {
            self.forget_pod(id);
            return;
        }
        if self.pods.get(id).is_some_and(|known| known.facts == facts) {
            return;
        }
        let selecting =
            of_namespace(&self.policies, &id.0).filter(|(_, p)| is_local && p.selects.matches(&facts.labels));
        let selecting: BTreeSet<Arc<str>> = selecting.map(|((_, name), _)| name.clone()).collect();
        let profiles = profiles(&self.policies, &id.0, &selecting);
        let old = self.pods.insert(id.clone(), PodState { facts, policies: selecting, profiles });
        self.count(id, old.as_ref(), false);
        let new = self.pods.get(id).cloned();
        self.count(id, new.as_ref(), true);
        let is_of_profile = |pod: Option<&PodState>| pod.is_some_and(|pod| !pod.policies.is_empty());
        self.changed |= is_of_profile(old.as_ref()) || is_of_profile(new.as_ref());
    }

    /// Removes a pod, with the addresses that were announced of it.
    pub fn delete_pod(&mut self, meta: &ObjectMeta) {
        self.remove_pod(&id(meta));
    }

    fn remove_pod(&mut self, id: &Id) {
        self.announced.remove(id);
        self.ended.remove(id);
        self.forget_pod(id);
    }

    fn forget_pod(&mut self, id: &Id) {
        if let Some(old) = self.pods.remove(id) {
            self.count(id, Some(&old), false);
            self.changed |= !old.policies.is_empty();
        }
    }

    /// Counts a pod's entries in the sets in use.
    fn count(&mut self, id: &Id, pod: Option<&PodState>, more: bool) {
        let Some(pod) = pod else { return };
        for set in self.selected.values_mut() {
            if !is_selected(&self.namespaces, &set.of, id, &pod.facts) {
                continue;
            }
            for (entry, family) in entries(&set.of, &pod.facts) {
                add(&mut set.entries[family as usize], entry, more);
                self.changed = true;
            }
        }
    }

    /// After a new list: removes every policy that was not in it.
    pub fn retain_policies(&mut self, listed: &BTreeSet<Id>) {
        let gone: Vec<Id> = self.policies.keys().filter(|id| !listed.contains(*id)).cloned().collect();
        gone.iter().for_each(|id| self.remove_policy(id));
    }

    /// After a new list: removes every pod that was not in it and was not announced.
    pub fn retain_pods(&mut self, listed: &BTreeSet<Id>) {
        let gone = |id: &Id| !listed.contains(id) && !self.announced.contains_key(id);
        let gone: Vec<Id> = self.pods.keys().filter(|id| gone(id)).cloned().collect();
        gone.iter().for_each(|id| self.remove_pod(id));
    }

    /// After a new list: removes every namespace that was not in it.
    pub fn retain_namespaces(&mut self, listed: &BTreeSet<Id>) {
        let is_listed = |name: &Arc<str>| listed.contains(&("".into(), name.clone()));
        let gone: Vec<Arc<str>> = self.namespaces.keys().filter(|name| !is_listed(name)).cloned().collect();
        for name in gone {
            self.namespaces.remove(&name);
            self.select_namespace(&name);
        }
    }

    /// The pods of this node with the policies that select them.
    pub(super) fn local_pods(&self) -> impl Iterator<Item = (&Id, &PodState)> {
        self.pods.iter().filter(|(_, pod)| self.is_judged(&pod.facts))
    }

    /// Compiles the profiles in use that are new, or of changed policies, and selects the sets that are named.
    pub(super) fn compile(&mut self) {
        let used: BTreeSet<Arc<Profile>> =
            self.local_pods().flat_map(|(_, pod)| pod.profiles.iter().flatten().cloned()).collect();
        let before = self.compiled.len();
        self.compiled.retain(|profile, _| used.contains(profile));
        self.is_selection_stale |= self.compiled.len() != before;
        for profile in used {
            if self.compiled.contains_key(&profile) {
                continue;
            }
            let policy = |name: &'_ Arc<str>| self.policies.get(&(profile.namespace.clone(), name.clone()));
            let policies: Vec<(&str, &Policy)> =
                profile.policies.iter().filter_map(|name| Some((&**name, policy(name)?))).collect();
            let compiled = Arc::new(compile(&profile, &policies));
            self.compiled.insert(profile, compiled);
            self.is_selection_stale = true;
        }
        if std::mem::take(&mut self.is_selection_stale) {
            self.select();
        }
    }

    /// A profile in use.
    pub(super) fn compiled(&self, profile: &Profile) -> Option<&Compiled> {
        self.compiled.get(profile).map(|compiled| &**compiled)
    }

    /// Keeps the entries of the sets that are named from now on, and of no others.
    fn select(&mut self) {
        let named = self.compiled.values().flat_map(|compiled| &compiled.selected);
        let named: BTreeMap<Arc<str>, Arc<Selected>> = named.map(|(name, of)| (name.clone(), of.clone())).collect();
        self.selected.retain(|name, _| named.contains_key(name));
        for (name, of) in named {
            if !self.selected.contains_key(&name) {
                let entries = self.entries_of(&of);
                let names = Family::BOTH.map(|family| format!("{name}{}", set_suffix(family)));
                self.selected.insert(name, SelectedSet { of, names, entries });
            }
        }
    }

    /// The sets that chains of profiles name in a family, with their names.
    pub(super) fn named_sets(&self, family: Family) -> impl Iterator<Item = (String, IpSet)> {
        let excepted = self.compiled.values().flat_map(move |compiled| &compiled.chains[family as usize].excepted);
        let of_pods = self.selected.values().map(move |set| {
            let kind = if set.of.port.is_some() { SetKind::HashIpPort } else { SetKind::HashIp };
            let entries = set.entries[family as usize].clone();
            (set.names[family as usize].clone(), IpSet { kind, entries })
        });
        of_pods.chain(excepted.cloned())
    }

    fn entries_of(&self, of: &Selected) -> [Entries; 2] {
        let mut sets = [Entries::default(), Entries::default()];
        let mut put = |(id, pod): (&Id, &PodState)| {
            if is_selected(&self.namespaces, of, id, &pod.facts) {
                entries(of, &pod.facts).for_each(|(entry, family)| add(&mut sets[family as usize], entry, true));
            }
        };
        match &of.pods.namespaces {
            Namespaces::One(name) => of_namespace(&self.pods, name).for_each(&mut put),
            Namespaces::Matching(_) | Namespaces::Any => self.pods.iter().for_each(&mut put),
        }
        sets
    }
}

/// What the policies that select a pod make of it.
fn profiles(policies: &BTreeMap<Id, Policy>, namespace: &Arc<str>, selecting: &BTreeSet<Arc<str>>) -> Profiles {
    if selecting.is_empty() {
        return Profiles::default();
    }
    DIRECTIONS.map(|direction| {
        let isolates = |name: &&Arc<str>| {
            let policy = policies.get(&(namespace.clone(), (*name).clone()));
            policy.is_some_and(|policy| direction.rules(policy).is_some())
        };
        Profile::new(direction, namespace, selecting.iter().filter(isolates).cloned().collect()).map(Arc::new)
    })
}

fn is_selected(
    namespaces: &BTreeMap<Arc<str>, BTreeMap<String, String>>,
    of: &Selected,
    (namespace, _): &Id,
    pod: &PodFacts,
) -> bool {
    let in_namespace = match &of.pods.namespaces {
        Namespaces::One(name) => name == namespace,
        Namespaces::Any => true,
        // A namespace that is not known yet has labels that are not known: it matches nothing.
        Namespaces::Matching(labels) => namespaces.get(namespace).is_some_and(|known| labels.matches(known)),
    };
    in_namespace && of.pods.labels.matches(&pod.labels)
}

/// The entries of a pod in a set that selects it.
fn entries<'a>(of: &'a Selected, pod: &'a PodFacts) -> impl Iterator<Item = (Entry, Family)> + 'a {
    pod.addresses.iter().flat_map(move |ip| {
        let family = Family::of(ip);
        let found: Vec<Entry> = match &of.port {
            None => vec![Entry::Address(*ip)],
            Some((protocol, name)) => {
                let named = pod.ports.iter().filter(|port| port.protocol == *protocol && port.name == *name);
                named.map(|port| Entry::Port(*ip, *protocol, port.number)).collect()
            }
        };
        found.into_iter().map(move |entry| (entry, family))
    })
}

fn add(set: &mut Entries, entry: Entry, more: bool) {
    let set = Arc::make_mut(set);
    if more {
        *set.entry(entry).or_default() += 1;
        return;
    }
    if let Some(count) = set.get_mut(&entry) {
        *count -= 1;
        if *count == 0 {
            set.remove(&entry);
        }
    }
}
