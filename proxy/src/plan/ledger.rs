//! The book of one family: blocks wanted for each service port, and chains known to be committed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    Print, Step,
    quarantine::{Quarantine, Treatment},
    resync::{KernelState, Standing},
    steps::Round,
};
use crate::{
    explain::Options,
    kernel::Saved,
    model::{Model, Protocol, ServiceId},
    rules::{
        ChainId, FLAT, Fixed, LineKey, PortRules, Settings, Table, Top, constant_rules, dispatch, port_rules,
        writes_firewall,
    },
};

/// Table and name of a chain of a dispatching tree.
pub(super) type DispatchId = (Table, String);

/// Chains with their rules.
pub(super) type Bodies<Id> = Vec<(Id, String)>;

/// Sorts service ports by cluster IP, port and protocol; the name makes it unique.
pub(super) type Key = (IpAddr, u16, Protocol, Arc<str>);

#[derive(Debug)]
struct Block {
    /// Those of its lines in fixed chains that there are: most service ports have one.
    top: Box<[TopLines]>,
    chains: Box<[ChainId]>,
    no_local: [bool; 2],
}

/// Lines of one service port in one fixed chain.
#[derive(Debug)]
struct TopLines {
    top: Top,
    text: Box<str>,
    /// Of each line: where it stands when the chain is a tree.
    keys: Box<[Option<LineKey>]>,
}

impl Block {
    fn lines_of(&self, top: Top) -> Option<&TopLines> {
        self.top.iter().find(|lines| lines.top == top)
    }

    fn lines(&self, top: Top) -> &str {
        self.lines_of(top).map_or("", |lines| &lines.text)
    }
}

/// The book of one family.
#[derive(Debug)]
pub struct Ledger {
    settings: Settings,
    blocks: BTreeMap<Key, Block>,
    by_service: HashMap<ServiceId, Box<[Key]>>,
    /// Services to render anew.
    pub(super) touched: BTreeSet<ServiceId>,
    /// A write under way.
    pub(super) round: Option<Round>,
    /// Chains in the kernel; `None` where the content is not known.
    pub(super) committed: HashMap<ChainId, Option<Print>>,
    /// Chains in the kernel that nobody wants.
    pub(super) dead: BTreeSet<ChainId>,
    /// The same for names that this version would not make.
    pub(super) foreign: BTreeSet<String>,
    pub(super) fixed: BTreeMap<Fixed, Print>,
    /// Chains of dispatching trees in the kernel; `None` where the content is not known.
    pub(super) dispatch: BTreeMap<DispatchId, Option<Print>>,
    /// Those of them that nobody wants.
    pub(super) dead_dispatch: BTreeSet<DispatchId>,
    /// Those that should be, by tree.
    wanted_dispatch: [BTreeSet<String>; Top::COUNT],
    top_dirty: [bool; Top::COUNT],
    pub(super) firewall_missing: bool,
    /// Indices into [`crate::rules::JUMPS`], rising.
    pub(super) jumps: BTreeSet<usize>,
    /// Names of dead chains that could not be deleted: something else leads to them. Not tried again before
    /// [`retry_deletions`](Self::retry_deletions).
    pub(super) undeletable: BTreeSet<(Table, String)>,
    /// How many Services one step may have; fewer than all while a refusal is looked for.
    pub(super) services_per_step: usize,
    /// Service ports whose rules the kernel refused.
    pub(super) quarantine: Quarantine,
    /// Rules committed, of filter and nat.
    rules: [u64; 2],
    /// Service ports without a local endpoint that their policy asks for: internal, external.
    without_local: [usize; 2],
}

impl Ledger {
    /// An empty book over an empty kernel in which all jumps are there; see [`adopt`](Self::adopt).
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            blocks: BTreeMap::new(),
            by_service: HashMap::new(),
            touched: BTreeSet::new(),
            round: None,
            committed: HashMap::new(),
            dead: BTreeSet::new(),
            foreign: BTreeSet::new(),
            fixed: BTreeMap::new(),
            dispatch: BTreeMap::new(),
            dead_dispatch: BTreeSet::new(),
            wanted_dispatch: Default::default(),
            top_dirty: [true; Top::COUNT],
            firewall_missing: false,
            jumps: BTreeSet::new(),
            undeletable: BTreeSet::new(),
            services_per_step: usize::MAX,
            quarantine: Quarantine::default(),
            rules: [0; 2],
            without_local: [0; 2],
        }
    }

    /// An empty book with the same settings and quarantine: what it renders is what should be.
    #[must_use]
    pub fn like(&self) -> Self {
        let (quarantine, undeletable) = (self.quarantine.clone(), self.undeletable.clone());
        Self { quarantine, undeletable, ..Self::new(self.settings.clone()) }
    }

    /// Starts over from what the kernel holds: every chain of ours is known by name and will be
    /// written or deleted; nothing is trusted. All Services must then be touched.
    pub fn adopt(&mut self, kernel: &Saved<'_>) {
        self.resync(KernelState::of(kernel), Standing::default());
    }

    /// Starts over from what the kernel holds. The chains of `standing` are as they should be and are not written
    /// again; all others of ours will be written or deleted. All Services must then be touched.
    pub fn resync(&mut self, kernel: KernelState, standing: Standing) {
        *self = self.like();
        self.dead_dispatch = kernel.dispatch.iter().cloned().collect();
        self.dispatch = kernel.dispatch.into_iter().map(|id| (id, None)).collect();
        self.dead = kernel.chains.iter().copied().collect();
        self.committed = kernel.chains.into_iter().map(|id| (id, None)).collect();
        self.foreign = kernel.foreign;
        self.firewall_missing = kernel.firewall_missing;
        self.jumps = kernel.missing_jumps;
        let Standing { chains, fixed, dispatch } = standing;
        self.commit(&Step { chains, fixed, dispatch, ..Step::default() });
    }

    /// Takes back steps that were handed out and not applied, and ends the write that they were of: their Services
    /// are touched again, and of their chains nothing is known, since one table may have been changed and the other
    /// not.
    pub fn abandon(&mut self, steps: impl IntoIterator<Item = Step>) {
        let mut lost: Vec<Step> = steps.into_iter().collect();
        if let Some(round) = self.round.take() {
            let (queue, rest) = round.left();
            self.touched.extend(queue);
            lost.extend(rest);
        }
        for step in lost {
            self.touched.extend(step.services);
            for (chain, _) in step.chains {
                let old = self.committed.insert(chain, None).flatten();
                self.count(Table::Nat, None, old);
            }
            for (fixed, _) in step.fixed {
                let old = self.fixed.remove(&fixed);
                self.count(fixed.table(), None, old);
            }
            for (id, _) in step.dispatch {
                let old = self.dispatch.insert(id.clone(), None).flatten();
                self.count(id.0, None, old);
            }
        }
        self.top_dirty = [true; Top::COUNT];
    }

    /// Leaves chains that nobody wants where they are for now: something else leads to them.
    pub fn keep_undeletable(&mut self, chains: impl IntoIterator<Item = (Table, String)>) {
        self.undeletable.extend(chains);
    }

    /// Chains that nobody wants and that could not be deleted.
    #[must_use]
    pub const fn undeletable(&self) -> &BTreeSet<(Table, String)> {
        &self.undeletable
    }

    /// They are tried again with the next write.
    pub fn retry_deletions(&mut self) {
        self.undeletable.clear();
    }

    /// How many Services one step may have from now on.
    pub fn limit_services_per_step(&mut self, most: usize) {
        self.services_per_step = most.max(1);
    }

    /// That number, if there is one.
    #[must_use]
    pub fn limits_services(&self) -> Option<usize> {
        (self.services_per_step != usize::MAX).then_some(self.services_per_step)
    }

    /// Whether Services wait to be rendered.
    #[must_use]
    pub fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The kernel refuses rules of a service port, named in full: it is written as one without endpoints from now
    /// on, and left out when those rules are refused too. False when it is left out already, or not known.
    pub fn quarantine_port(&mut self, model: &Model, full_name: &str) -> bool {
        let id = full_name.split(':').next().unwrap_or(full_name);
        let Some((id, service)) = model.service_entry(id) else { return false };
        let changed = self.quarantine.add(id, service, full_name);
        if changed {
            self.touched.insert(id.clone());
        }
        changed
    }

    /// Service ports whose rules the kernel refused.
    #[must_use]
    pub fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    /// All of them are tried again with the next write.
    pub fn release_quarantine(&mut self) {
        self.touched.extend(self.quarantine.release());
    }

    /// The settings in force.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes in other settings; true when all Services must be touched.
    pub fn set(&mut self, settings: Settings) -> bool {
        if settings == self.settings {
            return false;
        }
        let fixed_only = Settings { node_ports: self.settings.node_ports.clone(), ..settings.clone() } == self.settings;
        self.settings = settings;
        self.top_dirty = [true; Top::COUNT];
        !fixed_only
    }

    /// Notes that a Service or its endpoints changed, came or went.
    pub fn touch(&mut self, id: &ServiceId) {
        self.touched.insert(id.clone());
    }

    /// Renders one Service anew from the model, or drops it when the model has it no more. Gives the chains whose
    /// rules are not those in the kernel.
    pub(super) fn take(&mut self, model: &Model, id: &ServiceId) -> Bodies<ChainId> {
        let mut rendered: Vec<(Key, PortRules)> = Vec::new();
        if model.service(id).is_none() {
            self.quarantine.forget(id);
        }
        if let Some(service) = model.service(id)
            && let Some(ip) = service.cluster_ip(self.settings.family)
        {
            self.quarantine.look_at(id, service);
            for port in &service.ports {
                let endpoints = match self.quarantine.treatment(id, &port.full_name) {
                    Some(Treatment::Omit) => continue,
                    Some(Treatment::Refuse) => Vec::new(),
                    None => model.endpoints(id, port, self.settings.family),
                };
                if let Some(rules) = port_rules(&self.settings, service, port, &endpoints) {
                    rendered.push(((ip, port.port, port.protocol, port.full_name.clone()), rules));
                }
            }
        }
        rendered.sort_by(|a, b| a.0.cmp(&b.0));
        self.replace(id, rendered)
    }

    fn replace(&mut self, id: &ServiceId, rendered: Vec<(Key, PortRules)>) -> Bodies<ChainId> {
        let mut old: HashMap<Key, Block> = HashMap::new();
        for key in self.by_service.remove(id).unwrap_or_default() {
            if let Some(block) = self.blocks.remove(&key) {
                (0..2).for_each(|i| self.without_local[i] -= usize::from(block.no_local[i]));
                old.insert(key, block);
            }
        }
        let mut wanted: HashSet<ChainId> = HashSet::new();
        let mut keys = Vec::with_capacity(rendered.len());
        let mut changed = Vec::new();
        for (key, rules) in rendered {
            for top in Top::ALL {
                let before = old.get(&key).map_or("", |block| block.lines(top));
                self.top_dirty[top as usize] |= *before != *rules.top[top as usize];
            }
            let mut chains = Vec::with_capacity(rules.chains.len());
            for (chain, body) in rules.chains {
                wanted.insert(chain);
                self.dead.remove(&chain);
                if !self.undeletable.is_empty() {
                    self.undeletable.remove(&(Table::Nat, chain.to_string()));
                }
                chains.push(chain);
                if self.committed.get(&chain) != Some(&Some(Print::of(&body))) {
                    changed.push((chain, body));
                }
            }
            let lines = Top::ALL.into_iter().zip(rules.top).filter(|(_, lines)| !lines.is_empty());
            let block = Block {
                top: lines
                    .map(|(top, text)| {
                        let keys = text.lines().map(|line| LineKey::of(top, line)).collect();
                        TopLines { top, text: text.into_boxed_str(), keys }
                    })
                    .collect(),
                chains: chains.into(),
                no_local: [rules.no_local_internal, rules.no_local_external],
            };
            (0..2).for_each(|i| self.without_local[i] += usize::from(block.no_local[i]));
            self.blocks.insert(key.clone(), block);
            keys.push(key);
        }
        for (key, block) in &old {
            if !keys.contains(key) {
                block.top.iter().for_each(|lines| self.top_dirty[lines.top as usize] = true);
            }
        }
        if !keys.is_empty() {
            self.by_service.insert(id.clone(), keys.into());
        }
        for chain in old.values().flat_map(|block| block.chains.iter()) {
            if !wanted.contains(chain) && self.committed.contains_key(chain) {
                self.dead.insert(*chain);
            }
        }
        changed
    }

    /// The fixed chains and those of dispatching trees whose rules are not those in the kernel.
    pub(super) fn common(&mut self) -> (Bodies<Fixed>, Bodies<DispatchId>) {
        let mut fixed = Vec::new();
        let mut trees = Vec::new();
        for chain in Fixed::ALL {
            let top = Top::ALL.into_iter().find(|t| t.fixed() == chain);
            if top.is_some_and(|t| !std::mem::take(&mut self.top_dirty[t as usize])) {
                continue;
            }
            if chain == Fixed::FilterFirewall && !writes_firewall(&self.settings) {
                continue;
            }
            let mut body = String::new();
            if let Some(top) = top {
                let (root, below) = self.tree(top);
                body = root;
                trees.extend(below);
            }
            fixed.extend(self.changed(chain, body));
        }
        (fixed, trees)
    }

    /// A fixed chain with its lines and what it always holds, if that is not in the kernel.
    pub(super) fn changed(&self, chain: Fixed, lines: String) -> Option<(Fixed, String)> {
        let body = lines + &constant_rules(&self.settings, chain);
        (self.fixed.get(&chain) != Some(&Print::of(&body))).then_some((chain, body))
    }

    /// The lines of one fixed chain, perhaps as a tree: its root, and what changed below it.
    fn tree(&mut self, top: Top) -> (String, Bodies<DispatchId>) {
        let blocks = || self.blocks.values().filter_map(|block| block.lines_of(top));
        let is_tree = self.settings.layout.is_tree(blocks().map(|lines| lines.keys.len()).sum(), FLAT);
        let keyed = blocks().flat_map(|lines| lines.keys.iter().copied().zip(lines.text.lines()));
        let made = dispatch(top, keyed, is_tree);
        let table = top.fixed().table();
        let wanted = made.below.iter().map(|(name, _)| name.clone()).collect();
        for name in std::mem::replace(&mut self.wanted_dispatch[top as usize], wanted) {
            let id = (table, name);
            if self.dispatch.contains_key(&id) {
                self.dead_dispatch.insert(id);
            }
        }
        let mut below = Vec::new();
        for (name, body) in made.below {
            let id = (table, name);
            self.dead_dispatch.remove(&id);
            self.undeletable.remove(&id);
            if self.dispatch.get(&id) != Some(&Some(Print::of(&body))) {
                below.push((id, body));
            }
        }
        (made.root, below)
    }

    fn count(&mut self, table: Table, new: Option<Print>, old: Option<Print>) {
        let rules = |print: Option<Print>| print.map_or(0, Print::rules);
        let sum = &mut self.rules[table as usize];
        *sum = (*sum + rules(new)).saturating_sub(rules(old));
    }

    /// Notes that a step was applied.
    pub fn commit(&mut self, step: &Step) {
        for (chain, print) in &step.chains {
            let old = self.committed.insert(*chain, Some(*print)).flatten();
            self.count(Table::Nat, Some(*print), old);
        }
        for (fixed, print) in &step.fixed {
            let old = self.fixed.insert(*fixed, *print);
            self.count(fixed.table(), Some(*print), old);
        }
        for (id, print) in &step.dispatch {
            let old = self.dispatch.insert(id.clone(), Some(*print)).flatten();
            self.count(id.0, Some(*print), old);
        }
        for id in &step.dispatch_deleted {
            let old = self.dispatch.remove(id).flatten();
            self.count(id.0, None, old);
            self.dead_dispatch.remove(id);
        }
        for chain in &step.deleted {
            let old = self.committed.remove(chain).flatten();
            self.count(Table::Nat, None, old);
            self.dead.remove(chain);
        }
        for name in &step.deleted_names {
            self.foreign.remove(name);
        }
        for jump in &step.jumps {
            self.jumps.remove(jump);
        }
        if step.creates_firewall {
            self.firewall_missing = false;
        }
    }

    /// The service port that a line of a restore text belongs to: by a chain of its own that the line names, else by
    /// its comment.
    #[must_use]
    pub fn owner_of_rule(&self, line: &str) -> Option<Arc<str>> {
        let by_chain = line.split_whitespace().find_map(|word| self.owner(word.trim_start_matches(':')));
        by_chain.or_else(|| {
            let comment = Options::of(line).get("--comment")?.to_owned();
            let names: HashSet<&str> = comment.split_whitespace().collect();
            self.blocks.keys().map(|(.., name)| name).find(|name| names.contains(&***name)).cloned()
        })
    }

    /// The service port that a chain belongs to, for messages.
    #[must_use]
    fn owner(&self, chain: &str) -> Option<Arc<str>> {
        let id = ChainId::parse(chain)?;
        self.blocks.iter().find(|(_, b)| b.chains.contains(&id)).map(|((.., name), _)| name.clone())
    }

    /// Rules committed in a table.
    #[must_use]
    pub const fn rules(&self, table: Table) -> u64 {
        self.rules[table as usize]
    }

    /// Service ports with a Local policy (internal, external) and no endpoint here though elsewhere.
    #[must_use]
    pub const fn without_local(&self) -> [usize; 2] {
        self.without_local
    }
}
