//! The book of one family: blocks wanted for each service port, and chains known to be committed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    net::IpAddr,
    sync::Arc,
};

use super::{Limit, Print, Step, steps};
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

/// Sorts service ports by cluster IP, port and protocol; the name makes it unique.
pub(super) type Key = (IpAddr, u16, Protocol, Arc<str>);

#[derive(Debug)]
struct Block {
    top: [Box<str>; Top::COUNT],
    chains: Box<[ChainId]>,
    endpoints: usize,
    no_local: (bool, bool),
}

/// What differs between the kernel and what was committed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drift {
    /// Chains of ours that are gone.
    pub missing: usize,
    /// Chains of ours with another number of rules.
    pub changed: usize,
    /// Jumps that are gone.
    pub jumps: usize,
}

impl Drift {
    /// Whether all is as committed.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.missing == 0 && self.changed == 0 && self.jumps == 0
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { missing, changed, jumps } = self;
        write!(f, "{missing} chains missing, {changed} with another number of rules, {jumps} jumps missing")
    }
}

/// The book of one family.
#[derive(Debug)]
pub struct Ledger {
    settings: Settings,
    blocks: BTreeMap<Key, Block>,
    by_service: HashMap<ServiceId, Vec<Key>>,
    endpoints: usize,
    /// Bodies that differ from what is committed, by service port.
    pub(super) pending: BTreeMap<Key, Vec<(ChainId, String)>>,
    /// Chains in the kernel; `None` where the content is not known.
    pub(super) committed: HashMap<ChainId, Option<Print>>,
    /// Chains in the kernel that nobody wants.
    pub(super) dead: BTreeSet<ChainId>,
    /// The same for names that this version would not make.
    pub(super) foreign: BTreeSet<String>,
    pub(super) fixed: BTreeMap<Fixed, Print>,
    /// Chains of dispatching trees in the kernel; `None` where the content is not known.
    pub(super) dispatch: BTreeMap<DispatchId, Option<Print>>,
    /// Those that should be, by tree.
    wanted_dispatch: [BTreeSet<String>; Top::COUNT],
    top_dirty: [bool; Top::COUNT],
    constants_dirty: bool,
    pub(super) firewall_missing: bool,
    /// Indices into [`crate::rules::JUMPS`], rising.
    pub(super) jumps: BTreeSet<usize>,
    pub(super) deletes_apart: bool,
}

impl Ledger {
    /// An empty book over an empty kernel in which all jumps are there; see [`adopt`](Self::adopt).
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            blocks: BTreeMap::new(),
            by_service: HashMap::new(),
            endpoints: 0,
            pending: BTreeMap::new(),
            committed: HashMap::new(),
            dead: BTreeSet::new(),
            foreign: BTreeSet::new(),
            fixed: BTreeMap::new(),
            dispatch: BTreeMap::new(),
            wanted_dispatch: Default::default(),
            top_dirty: [true; Top::COUNT],
            constants_dirty: true,
            firewall_missing: false,
            jumps: BTreeSet::new(),
            deletes_apart: false,
        }
    }

    /// Whether stale chains are deleted in a restore of their own: after a failure, so that a chain
    /// that something else still uses cannot keep all other changes out.
    pub fn delete_apart(&mut self, apart: bool) {
        self.deletes_apart = apart;
    }

    /// Starts over from what the kernel holds: every chain of ours is known by name and will be
    /// written or deleted; nothing is trusted. All Services must then be taken in again.
    pub fn adopt(&mut self, kernel: &Saved<'_>) {
        let settings = self.settings.clone();
        *self = Self::new(settings);
        for table in Table::BOTH {
            let trees = kernel.chains(table).filter(|(name, _)| is_dispatch(name));
            self.dispatch.extend(trees.map(|(name, _)| ((table, name.to_owned()), None)));
        }
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

    /// Takes in other settings; true when all Services must be taken in again.
    pub fn set(&mut self, settings: Settings) -> bool {
        if settings == self.settings {
            return false;
        }
        let fixed_only = Settings { node_ports: self.settings.node_ports.clone(), ..settings.clone() } == self.settings;
        self.settings = settings;
        self.constants_dirty = true;
        self.top_dirty = [true; Top::COUNT];
        !fixed_only
    }

    /// Renders one Service anew from the model, or drops it when the model has it no more.
    pub fn take(&mut self, model: &Model, id: &ServiceId) {
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
        self.replace(id, rendered);
    }

    fn replace(&mut self, id: &ServiceId, rendered: Vec<(Key, PortRules)>) {
        let mut old_top: HashMap<Key, [Box<str>; Top::COUNT]> = HashMap::new();
        let mut old_chains: Vec<ChainId> = Vec::new();
        for key in self.by_service.remove(id).unwrap_or_default() {
            self.pending.remove(&key);
            if let Some(block) = self.blocks.remove(&key) {
                self.endpoints -= block.endpoints;
                old_chains.extend(block.chains.iter());
                old_top.insert(key, block.top);
            }
        }
        let mut wanted: HashSet<ChainId> = HashSet::new();
        let mut keys = Vec::with_capacity(rendered.len());
        for (key, rules) in rendered {
            let old = old_top.remove(&key);
            for top in Top::ALL {
                let i = top as usize;
                let before = old.as_ref().map_or("", |o| &o[i]);
                self.top_dirty[i] |= *before != *rules.top[i];
            }
            let mut chains = Vec::with_capacity(rules.chains.len());
            let mut changed = Vec::new();
            for (chain, body) in rules.chains {
                wanted.insert(chain);
                self.dead.remove(&chain);
                chains.push(chain);
                if self.committed.get(&chain) != Some(&Some(Print::of(&body))) {
                    changed.push((chain, body));
                }
            }
            if !changed.is_empty() {
                self.pending.insert(key.clone(), changed);
            }
            self.endpoints += rules.endpoints;
            let block = Block {
                top: rules.top.map(String::into_boxed_str),
                chains: chains.into(),
                endpoints: rules.endpoints,
                no_local: (rules.no_local_internal, rules.no_local_external),
            };
            self.blocks.insert(key.clone(), block);
            keys.push(key);
        }
        for top in old_top.into_values() {
            for (dirty, lines) in self.top_dirty.iter_mut().zip(top) {
                *dirty |= !lines.is_empty();
            }
        }
        if !keys.is_empty() {
            self.by_service.insert(id.clone(), keys);
        }
        for chain in old_chains {
            if !wanted.contains(&chain) && self.committed.contains_key(&chain) {
                self.dead.insert(chain);
            }
        }
    }

    /// The texts to restore, in order; empty when the kernel holds everything already. After each
    /// one that was applied call [`commit`](Self::commit); after one that failed call
    /// [`adopt`](Self::adopt): bodies are handed out once.
    pub fn steps(&mut self, limit: Limit) -> Vec<Step> {
        let mut fixed = Vec::new();
        let mut trees = Vec::new();
        for chain in Fixed::ALL {
            let top = Top::ALL.into_iter().find(|t| t.fixed() == chain);
            if !self.constants_dirty && !top.is_some_and(|t| self.top_dirty[t as usize]) {
                continue;
            }
            if chain == Fixed::FilterFirewall && !writes_firewall(&self.settings) {
                continue;
            }
            let mut body = String::new();
            if let Some(top) = top {
                let lines = self.blocks.values().flat_map(|b| b.top[top as usize].lines());
                let tree = self.settings.layout.is_tree(lines.clone().count(), FLAT);
                let made = dispatch(top, lines, tree);
                body = made.root;
                let table = chain.table();
                self.wanted_dispatch[top as usize] = made.below.iter().map(|(name, _)| name.clone()).collect();
                for (name, body) in made.below {
                    let id = (table, name);
                    if self.dispatch.get(&id) != Some(&Some(Print::of(&body))) {
                        trees.push((id, body));
                    }
                }
            }
            body.push_str(&constant_rules(&self.settings, chain));
            if self.fixed.get(&chain) != Some(&Print::of(&body)) {
                fixed.push((chain, body));
            }
        }
        self.constants_dirty = false;
        self.top_dirty = [false; Top::COUNT];
        steps::build(self, fixed, trees, limit)
    }

    /// Chains of trees in the kernel that nobody wants.
    pub(super) fn dead_dispatch(&self) -> Vec<DispatchId> {
        let wanted = |(table, name): &DispatchId| {
            Top::ALL.into_iter().any(|t| t.fixed().table() == *table && self.wanted_dispatch[t as usize].contains(name))
        };
        self.dispatch.keys().filter(|id| !wanted(id)).cloned().collect()
    }

    /// Notes that a step was applied.
    pub fn commit(&mut self, step: &Step) {
        for (chain, print) in &step.chains {
            self.committed.insert(*chain, Some(*print));
        }
        self.fixed.extend(step.fixed.iter().copied());
        self.dispatch.extend(step.dispatch.iter().map(|(id, print)| (id.clone(), Some(*print))));
        for id in &step.dispatch_deleted {
            self.dispatch.remove(id);
        }
        for chain in &step.deleted {
            self.committed.remove(chain);
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

    /// Compares the kernel with what was committed. Counts rules; their text is not compared.
    #[must_use]
    pub fn drift(&self, kernel: &Saved<'_>) -> Drift {
        let mut drift = Drift { jumps: kernel.missing_jumps().len(), ..Drift::default() };
        let mut look = |table: Table, name: &str, print: &Print| match kernel.chain(table, name) {
            None => drift.missing += 1,
            Some(chain) if chain.rules.len() != print.rules as usize => drift.changed += 1,
            Some(_) => {}
        };
        for (chain, print) in &self.fixed {
            look(chain.table(), chain.name(), print);
        }
        for ((table, name), print) in &self.dispatch {
            if let Some(print) = print {
                look(*table, name, print);
            }
        }
        for (chain, print) in &self.committed {
            if let Some(print) = print {
                look(Table::Nat, &chain.to_string(), print);
            }
        }
        drift
    }

    /// The service port that a chain belongs to, for messages.
    #[must_use]
    pub fn owner(&self, chain: &str) -> Option<Arc<str>> {
        let id = ChainId::parse(chain)?;
        self.blocks.iter().find(|(_, b)| b.chains.contains(&id)).map(|((.., name), _)| name.clone())
    }

    /// Endpoints of all service ports together.
    #[must_use]
    pub const fn endpoints(&self) -> usize {
        self.endpoints
    }

    /// Rules committed in a table.
    #[must_use]
    pub fn rules(&self, table: Table) -> u64 {
        let fixed = self.fixed.iter().filter(|(f, _)| f.table() == table).map(|(_, p)| u64::from(p.rules)).sum::<u64>();
        let own = match table {
            Table::Nat => self.committed.values().flatten().map(|p| u64::from(p.rules)).sum::<u64>(),
            Table::Filter => 0,
        };
        let trees = self.dispatch.iter().filter(|((t, _), _)| *t == table).filter_map(|(_, p)| *p);
        fixed + own + trees.map(|p| u64::from(p.rules)).sum::<u64>()
    }

    /// Service ports with a Local policy (internal, external) and no endpoint here though elsewhere.
    #[must_use]
    pub fn without_local(&self) -> (usize, usize) {
        let count = |f: fn(&Block) -> bool| self.blocks.values().filter(|b| f(b)).count();
        (count(|b| b.no_local.0), count(|b| b.no_local.1))
    }
}
