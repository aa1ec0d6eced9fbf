//! Desired and last committed chains of one address family.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    Bodies, ChainHash, Committed, Outcome, SyncPass, TableBatch, TreeChainId,
    base_chains::BaseChains,
    quarantine::{Quarantine, Treatment},
    resync::{KernelState, VerifiedChains},
};
use crate::{
    explain::RuleOptions,
    iptables_save::SavedRuleset,
    model::{Model, Protocol, ServiceId},
    rules::{
        ChainId, DispatchChain, DispatchRules, MAX_FLAT_LINES, PerPolicy, ServicePortRules, Settings, StaticChain,
        Table, constant_rules, service_port_rules, writes_kubelet_firewall,
    },
};

/// Whether a chain has been written with these rules.
fn is_written(known: Option<Committed>, rules: &str) -> bool {
    known.is_some_and(|known| known.written == ChainHash::of(rules))
}

/// Orders service ports by cluster IP, port and protocol; the full name makes it unique. Several maps share it.
pub(super) type ServicePortKey = Arc<(IpAddr, u16, Protocol, Arc<str>)>;

/// What is remembered of one rendered service port, besides its rules in the dispatch chains.
#[derive(Debug)]
struct ServicePortState {
    chains: Box<[ChainId]>,
    no_local: PerPolicy<bool>,
}

/// Desired and last committed chains of one address family.
#[derive(Debug)]
pub struct RulesetState {
    settings: Settings,
    service_ports: BTreeMap<ServicePortKey, ServicePortState>,
    /// Their rules in the dispatch chains.
    dispatch: [DispatchRules<ServicePortKey>; DispatchChain::COUNT],
    by_service: HashMap<ServiceId, Box<[ServicePortKey]>>,
    /// Services to render again.
    pub(super) dirty: BTreeSet<ServiceId>,
    /// Services whose rules have endpoint comments although the cluster is large now, or lack them although it is
    /// small: comments alone are no reason to rewrite everything at once.
    other_comments: HashSet<ServiceId>,
    /// The write in progress.
    pub(super) pass: Option<SyncPass>,
    /// Batches that were handed out and neither committed nor taken back. One that waits for the xtables lock may wait for
    /// long.
    pub(super) handed_out: usize,
    /// Chains of service ports in the kernel; `None` where the content is unknown.
    pub(super) committed: HashMap<ChainId, Option<Committed>>,
    /// Chains in the kernel that no service port has any more.
    pub(super) stale_chains: BTreeSet<ChainId>,
    /// Stale chains whose names this version would not make.
    pub(super) unknown_chains: BTreeSet<String>,
    pub(super) static_chains: BTreeMap<StaticChain, Committed>,
    /// Chains of dispatch trees in the kernel; `None` where the content is unknown.
    pub(super) tree_chains: BTreeMap<TreeChainId, Option<Committed>>,
    /// Those of them that no tree has any more.
    pub(super) stale_tree_chains: BTreeSet<TreeChainId>,
    dirty_chains: [bool; DispatchChain::COUNT],
    /// KUBE-FIREWALL does not exist, and the jumps to it need it.
    pub(super) kubelet_firewall_missing: bool,
    /// The jumps from base chains, of filter and nat.
    pub(super) base_chains: [BaseChains; 2],
    /// Stale chains that could not be deleted because a rule of another program jumps to them. Not retried before
    /// [`retry_deletions`](Self::retry_deletions).
    pub(super) undeletable: BTreeSet<(Table, String)>,
    /// How many Services one batch may have; limited while the Service of a refused rule is searched for.
    pub(super) services_per_batch: usize,
    /// Service ports whose rules the kernel refused.
    pub(super) quarantine: Quarantine,
    /// Rules committed, of filter and nat.
    pub(super) rules: [u64; 2],
    /// Service ports of traffic policy Local (internal, external) without an endpoint on this node.
    without_local: PerPolicy<usize>,
}

impl RulesetState {
    /// The state of an empty kernel in which all jumps exist; see [`resync_from_kernel`](Self::resync_from_kernel).
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            service_ports: BTreeMap::new(),
            dispatch: DispatchChain::ALL.map(DispatchRules::new),
            by_service: HashMap::new(),
            dirty: BTreeSet::new(),
            other_comments: HashSet::new(),
            pass: None,
            handed_out: 0,
            committed: HashMap::new(),
            stale_chains: BTreeSet::new(),
            unknown_chains: BTreeSet::new(),
            static_chains: BTreeMap::new(),
            tree_chains: BTreeMap::new(),
            stale_tree_chains: BTreeSet::new(),
            dirty_chains: [true; DispatchChain::COUNT],
            kubelet_firewall_missing: false,
            base_chains: [BaseChains::complete(), BaseChains::complete()],
            undeletable: BTreeSet::new(),
            services_per_batch: usize::MAX,
            quarantine: Quarantine::default(),
            rules: [0; 2],
            without_local: PerPolicy::default(),
        }
    }

    /// An empty state with the same settings, comments and quarantine: it renders the complete desired rules.
    #[must_use]
    pub fn empty_copy(&self) -> Self {
        let (quarantine, undeletable) = (self.quarantine.clone(), self.undeletable.clone());
        let other_comments = self.other_comments.clone();
        Self { quarantine, undeletable, other_comments, ..Self::new(self.settings.clone()) }
    }

    /// Starts over from the kernel's chains, known by name only: each one of ours will be written or deleted. The
    /// caller marks all Services dirty afterwards.
    pub fn resync_from_kernel(&mut self, kernel: &SavedRuleset<'_>) {
        self.resync(KernelState::of(kernel), VerifiedChains::default());
    }

    /// Starts over from the kernel's chains. Those in `verified` are right and are not written again; all others of
    /// ours will be written or deleted. The caller marks all Services dirty afterwards.
    pub fn resync(&mut self, kernel: KernelState, verified: VerifiedChains) {
        *self = self.empty_copy();
        self.stale_tree_chains = kernel.tree_chains.iter().cloned().collect();
        self.tree_chains = kernel.tree_chains.into_iter().map(|id| (id, None)).collect();
        self.stale_chains = kernel.service_chains.iter().copied().collect();
        self.committed = kernel.service_chains.into_iter().map(|id| (id, None)).collect();
        self.unknown_chains = kernel.unknown_chains;
        self.kubelet_firewall_missing = kernel.kubelet_firewall_missing;
        self.base_chains = kernel.base_chains.unwrap_or([BaseChains::Unknown, BaseChains::Unknown]);
        self.adopt(verified);
    }

    /// Takes back a batch that failed, and those behind it that were handed out and not tried, and ends the pass they
    /// belong to: their Services are dirty again. What is in the kernel is what was committed, but for a batch whose
    /// outcome is unknown: the table must be [read back](Self::needs_read_back) then.
    pub fn abandon(&mut self, failed: TableBatch, outcome: Outcome, untried: impl IntoIterator<Item = TableBatch>) {
        if outcome == Outcome::Unknown {
            self.base_chains[failed.table as usize] = BaseChains::Unknown;
        }
        self.handed_out = 0;
        let mut batches: Vec<TableBatch> = std::iter::once(failed).chain(untried).collect();
        if let Some(pass) = self.pass.take() {
            let (queue, rest) = pass.into_remaining();
            self.dirty.extend(queue);
            batches.extend(rest);
        }
        if batches.iter().any(|batch| !batch.changes.tree_chains.is_empty()) {
            self.dispatch.iter_mut().for_each(DispatchRules::forget);
        }
        self.dirty.extend(batches.into_iter().flat_map(|batch| batch.changes.services));
        self.dirty_chains = [true; DispatchChain::COUNT];
    }

    /// Whether the outcome of a transaction is unknown: the kernel's rules must be read before anything is written, so
    /// that no jump is inserted a second time.
    #[must_use]
    pub fn needs_read_back(&self) -> bool {
        self.base_chains.contains(&BaseChains::Unknown)
    }

    /// Keeps stale chains that cannot be deleted, because a rule of another program jumps to them.
    pub fn mark_undeletable(&mut self, chains: impl IntoIterator<Item = (Table, String)>) {
        self.undeletable.extend(chains);
    }

    /// Stale chains that could not be deleted.
    #[must_use]
    pub const fn undeletable(&self) -> &BTreeSet<(Table, String)> {
        &self.undeletable
    }

    /// Retries their deletion with the next write.
    pub fn retry_deletions(&mut self) {
        self.undeletable.clear();
    }

    /// Limits the number of Services in one batch; `usize::MAX` for no limit.
    pub fn limit_services_per_batch(&mut self, max: usize) {
        self.services_per_batch = max.max(1);
    }

    /// The limit of Services in one batch, if there is one.
    #[must_use]
    pub fn services_limit(&self) -> Option<usize> {
        (self.services_per_batch != usize::MAX).then_some(self.services_per_batch)
    }

    /// Whether Services wait to be rendered.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Quarantines a service port, given by its full name, whose rules the kernel refuses: it is rendered without
    /// endpoints from now on, and omitted when those rules are refused too. False when it is omitted already, or
    /// unknown.
    pub fn quarantine_port(&mut self, model: &Model, full_name: &str) -> bool {
        let id = full_name.split(':').next().unwrap_or(full_name);
        let Some((id, service)) = model.service_entry(id) else { return false };
        let changed = self.quarantine.add(id, service, full_name);
        if changed {
            self.dirty.insert(id.clone());
        }
        changed
    }

    /// The number of service ports in quarantine.
    #[must_use]
    pub fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    /// Retries all of them with the next write.
    pub fn release_quarantine(&mut self) {
        self.dirty.extend(self.quarantine.release());
    }

    /// The settings in force.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Replaces the settings; true when all Services must be rendered again. Those that are written keep or lack the
    /// comments of their endpoints until they change, or [until those are wanted](Self::renew_comments).
    pub fn set(&mut self, settings: Settings) -> bool {
        if settings == self.settings {
            return false;
        }
        let node_ports = self.settings.node_ports.clone();
        let static_only = Settings { node_ports, large: self.settings.large, ..settings.clone() } == self.settings;
        if !static_only {
            self.other_comments.clear();
        } else if settings.large != self.settings.large {
            let others = std::mem::take(&mut self.other_comments);
            let written = self.by_service.keys().filter(|id| !others.contains(*id) && !self.dirty.contains(*id));
            self.other_comments = written.cloned().collect();
        }
        self.settings = settings;
        self.dirty_chains = [true; DispatchChain::COUNT];
        !static_only
    }

    /// Marks a Service for rendering: it or its endpoints were added, changed or deleted.
    pub fn mark_dirty(&mut self, id: &ServiceId) {
        self.other_comments.remove(id);
        self.dirty.insert(id.clone());
    }

    /// Marks all Services for rendering, none of which need have changed.
    pub fn mark_all_dirty(&mut self, model: &Model) {
        self.dirty.extend(model.services().map(|(id, _)| id.clone()));
    }

    /// A Service has the comments of endpoints that others lack, or lacks those that they have.
    pub(super) fn keep_other_comments(&mut self, id: &ServiceId) {
        self.other_comments.insert(id.clone());
    }

    /// Marks the Services whose comments are not those of the cluster's size; whether there are any.
    pub fn renew_comments(&mut self) -> bool {
        let others = std::mem::take(&mut self.other_comments);
        let any = !others.is_empty();
        self.dirty.extend(others);
        any
    }

    /// Renders one Service from the model, or drops it when the model has none. Returns the chains whose rules differ
    /// from the committed ones.
    pub(super) fn render_service(&mut self, model: &Model, id: &ServiceId) -> Bodies<ChainId> {
        let mut rendered: Vec<(ServicePortKey, ServicePortRules)> = Vec::new();
        if model.service(id).is_none() {
            self.quarantine.remove(id);
        }
        if let Some(service) = model.service(id)
            && let Some(ip) = service.cluster_ip(self.settings.family)
        {
            self.quarantine.release_changed(id, service);
            let mut settings = Cow::Borrowed(&self.settings);
            if self.other_comments.contains(id) {
                settings.to_mut().large ^= true;
            }
            for port in &service.ports {
                let endpoints = match self.quarantine.treatment(id, &port.full_name) {
                    Some(Treatment::Omit) => continue,
                    Some(Treatment::Refuse) => Vec::new(),
                    None => model.endpoints(id, port, self.settings.family),
                };
                if let Some(rules) = service_port_rules(&settings, service, port, &endpoints) {
                    rendered.push((Arc::new((ip, port.port, port.protocol, port.full_name.clone())), rules));
                }
            }
        }
        rendered.sort_by(|a, b| a.0.cmp(&b.0));
        self.replace(id, rendered)
    }

    fn replace(&mut self, id: &ServiceId, rendered: Vec<(ServicePortKey, ServicePortRules)>) -> Bodies<ChainId> {
        let mut old: HashMap<ServicePortKey, ServicePortState> = HashMap::new();
        for key in self.by_service.remove(id).unwrap_or_default() {
            if let Some(state) = self.service_ports.remove(&key) {
                self.without_local = self.without_local.without(state.no_local);
                old.insert(key, state);
            }
        }
        let mut wanted: HashSet<ChainId> = HashSet::new();
        let mut keys = Vec::with_capacity(rendered.len());
        let mut changed = Vec::new();
        for (key, rules) in rendered {
            let key = old.get_key_value(&key).map_or(key, |(known, _)| known.clone());
            self.dispatch_rules(&key, &rules.dispatch);
            let mut chains = Vec::with_capacity(rules.chains.len());
            for (chain, body) in rules.chains {
                wanted.insert(chain);
                self.stale_chains.remove(&chain);
                if !self.undeletable.is_empty() {
                    self.undeletable.remove(&(Table::Nat, chain.to_string()));
                }
                chains.push(chain);
                if !is_written(self.committed.get(&chain).copied().flatten(), &body) {
                    changed.push((chain, body));
                }
            }
            let state = ServicePortState { chains: chains.into(), no_local: rules.no_local };
            self.without_local = self.without_local.with(state.no_local);
            self.service_ports.insert(key.clone(), state);
            keys.push(key);
        }
        for key in old.keys().filter(|key| !keys.contains(*key)) {
            self.dispatch_rules(key, &Default::default());
        }
        if !keys.is_empty() {
            self.by_service.insert(id.clone(), keys.into());
        }
        for chain in old.values().flat_map(|state| state.chains.iter()) {
            if !wanted.contains(chain) && self.committed.contains_key(chain) {
                self.stale_chains.insert(*chain);
            }
        }
        changed
    }

    /// Renders the static chains and the dispatch trees; returns those that differ from the committed ones.
    pub(super) fn render_shared_chains(&mut self) -> (Bodies<StaticChain>, Bodies<TreeChainId>) {
        let mut static_chains = Vec::new();
        let mut trees = Vec::new();
        for chain in StaticChain::ALL {
            let dispatch = DispatchChain::ALL.into_iter().find(|t| t.static_chain() == chain);
            if dispatch.is_some_and(|t| !std::mem::take(&mut self.dirty_chains[t as usize])) {
                continue;
            }
            if chain == StaticChain::FilterKubeletFirewall && !writes_kubelet_firewall(&self.settings) {
                continue;
            }
            let mut body = String::new();
            if let Some(dispatch) = dispatch {
                let (root, subchains) = self.tree(dispatch);
                body = root;
                trees.extend(subchains);
            }
            static_chains.extend(self.changed(chain, body));
        }
        (static_chains, trees)
    }

    /// A static chain with its dispatch rules and its constant rules, if it differs from the committed one.
    pub(super) fn changed(&self, chain: StaticChain, lines: String) -> Option<(StaticChain, String)> {
        let body = lines + &constant_rules(&self.settings, chain);
        (!is_written(self.static_chains.get(&chain).copied(), &body)).then_some((chain, body))
    }

    /// Replaces the rules of a service port in the dispatch chains.
    fn dispatch_rules(&mut self, key: &ServicePortKey, rules: &[String; DispatchChain::COUNT]) {
        for ((dispatch, dirty), text) in self.dispatch.iter_mut().zip(&mut self.dirty_chains).zip(rules) {
            *dirty |= dispatch.put(key, text);
        }
    }

    /// The rules of one dispatch chain, as a tree where there are many: its root, and the changed chains below it.
    fn tree(&mut self, dispatch: DispatchChain) -> (String, Bodies<TreeChainId>) {
        let rules = &mut self.dispatch[dispatch as usize];
        let is_tree = self.settings.layout.is_tree(rules.len(), MAX_FLAT_LINES);
        let tree = rules.render(is_tree);
        let table = dispatch.static_chain().table();
        for name in tree.gone {
            let id = (table, name);
            if self.tree_chains.contains_key(&id) {
                self.stale_tree_chains.insert(id);
            }
        }
        let mut subchains = Vec::new();
        for (name, body) in tree.subchains {
            let id = (table, name);
            self.stale_tree_chains.remove(&id);
            self.undeletable.remove(&id);
            if !is_written(self.tree_chains.get(&id).copied().flatten(), &body) {
                subchains.push((id, body));
            }
        }
        (tree.root, subchains)
    }

    /// The service port that a line of restore input belongs to: by a chain of the service port that the line names,
    /// else by its comment.
    #[must_use]
    pub fn service_port_of_rule(&self, line: &str) -> Option<Arc<str>> {
        let by_chain =
            line.split_whitespace().find_map(|word| self.service_port_of_chain(word.trim_start_matches(':')));
        by_chain.or_else(|| {
            let comment = RuleOptions::of(line).get("--comment")?.to_owned();
            let names: HashSet<&str> = comment.split_whitespace().collect();
            self.service_ports.keys().map(|port| &port.3).find(|name| names.contains(&***name)).cloned()
        })
    }

    /// The service port that a chain belongs to, for messages.
    #[must_use]
    fn service_port_of_chain(&self, chain: &str) -> Option<Arc<str>> {
        let id = ChainId::parse(chain)?;
        self.service_ports.iter().find(|(_, b)| b.chains.contains(&id)).map(|(port, _)| port.3.clone())
    }

    /// Rules committed in a table.
    #[must_use]
    pub const fn rules(&self, table: Table) -> u64 {
        self.rules[table as usize]
    }

    /// Service ports of traffic policy Local with endpoints on other nodes only.
    #[must_use]
    pub const fn without_local(&self) -> PerPolicy<usize> {
        self.without_local
    }
}
