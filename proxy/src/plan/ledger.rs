//! The book of one family: blocks wanted for each service port, and chains known to be committed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use super::{Print, Step, steps::Round};
use crate::{
    kernel::Saved,
    model::{Model, Protocol, ServiceId},
    rules::{
        ChainId, FLAT, Fixed, PortRules, Settings, Table, Top, constant_rules, dispatch, is_dispatch, is_owned,
        port_rules, writes_firewall,
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
    top: Box<[(Top, Box<str>)]>,
    chains: Box<[ChainId]>,
    no_local: [bool; 2],
}

impl Block {
    fn lines(&self, top: Top) -> &str {
        self.top.iter().find(|(t, _)| *t == top).map_or("", |(_, lines)| lines)
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
    pub(super) deletes_apart: bool,
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
            deletes_apart: false,
            rules: [0; 2],
            without_local: [0; 2],
        }
    }

    /// Whether stale chains are deleted in a restore of their own: after a failure, so that a chain
    /// that something else still uses cannot keep all other changes out.
    pub fn delete_apart(&mut self, apart: bool) {
        self.deletes_apart = apart;
    }

    /// Starts over from what the kernel holds: every chain of ours is known by name and will be
    /// written or deleted; nothing is trusted. All Services must then be touched.
    pub fn adopt(&mut self, kernel: &Saved<'_>) {
        let settings = self.settings.clone();
        *self = Self::new(settings);
        for table in Table::BOTH {
            let trees = kernel.chains(table).filter(|(name, _)| is_dispatch(name));
            self.dispatch.extend(trees.map(|(name, _)| ((table, name.to_owned()), None)));
        }
        self.dead_dispatch = self.dispatch.keys().cloned().collect();
        for (name, _) in kernel.chains(Table::Nat).filter(|(name, _)| is_owned(name) && !is_dispatch(name)) {
            match ChainId::parse(name) {
                Some(id) => {
                    self.committed.insert(id, None);
                    self.dead.insert(id);
                }
                None => {
                    self.foreign.insert(name.to_owned());
                }
            }
        }
        self.firewall_missing = kernel.chain(Table::Filter, Fixed::FilterFirewall.name()).is_none();
        self.jumps = kernel.missing_jumps().into_iter().collect();
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
        if let Some(service) = model.service(id)
            && let Some(ip) = service.cluster_ip(self.settings.family)
        {
            for port in &service.ports {
                let endpoints = model.endpoints(id, port, self.settings.family);
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
                chains.push(chain);
                if self.committed.get(&chain) != Some(&Some(Print::of(&body))) {
                    changed.push((chain, body));
                }
            }
            let lines = Top::ALL.into_iter().zip(rules.top).filter(|(_, lines)| !lines.is_empty());
            let block = Block {
                top: lines.map(|(top, lines)| (top, lines.into_boxed_str())).collect(),
                chains: chains.into(),
                no_local: [rules.no_local_internal, rules.no_local_external],
            };
            (0..2).for_each(|i| self.without_local[i] += usize::from(block.no_local[i]));
            self.blocks.insert(key.clone(), block);
            keys.push(key);
        }
        for (key, block) in &old {
            if !keys.contains(key) {
                block.top.iter().for_each(|(top, _)| self.top_dirty[*top as usize] = true);
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
        let lines = self.blocks.values().flat_map(|b| b.lines(top).lines());
        let is_tree = self.settings.layout.is_tree(lines.clone().count(), FLAT);
        let made = dispatch(top, lines, is_tree);
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
            if self.dispatch.get(&id) != Some(&Some(Print::of(&body))) {
                below.push((id, body));
            }
        }
        (made.root, below)
    }

    /// Notes that a step was applied.
    pub fn commit(&mut self, step: &Step) {
        let mut count = |table: Table, new: Option<Print>, old: Option<Print>| {
            let rules = |print: Option<Print>| print.map_or(0, Print::rules);
            let sum = &mut self.rules[table as usize];
            *sum = (*sum + rules(new)).saturating_sub(rules(old));
        };
        for (chain, print) in &step.chains {
            count(Table::Nat, Some(*print), self.committed.insert(*chain, Some(*print)).flatten());
        }
        for (fixed, print) in &step.fixed {
            count(fixed.table(), Some(*print), self.fixed.insert(*fixed, *print));
        }
        for (id, print) in &step.dispatch {
            count(id.0, Some(*print), self.dispatch.insert(id.clone(), Some(*print)).flatten());
        }
        for id in &step.dispatch_deleted {
            count(id.0, None, self.dispatch.remove(id).flatten());
            self.dead_dispatch.remove(id);
        }
        for chain in &step.deleted {
            count(Table::Nat, None, self.committed.remove(chain).flatten());
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

    /// The service port that a chain belongs to, for messages.
    #[must_use]
    pub fn owner(&self, chain: &str) -> Option<Arc<str>> {
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
