//! The tree of a dispatch chain as it was last rendered: only what a change touches is rendered again.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    fmt::Write as _,
};

use super::{
    super::DispatchChain, BITS_PER_LEVEL, DispatchTree, KeySpace, LineKey, MAX_LEAF_LINES, mask, port, prefix,
};

/// How many rules of a dispatch chain there are of each key, by what names them: a service port, in its order.
type Sorted<L> = BTreeMap<(LineKey, Option<L>), usize>;

/// The rules of one dispatch chain, by service port, and the tree of those that were rendered last. `K` orders service
/// ports, as their rules are in a flat chain.
#[derive(Debug)]
pub struct DispatchRules<K> {
    chain: DispatchChain,
    rules: BTreeMap<K, Box<str>>,
    /// How many rules there are.
    count: usize,
    sorted: Sorted<K>,
    /// Service ports with rules that have no key.
    unsorted: BTreeSet<K>,
    /// Keys whose rules differ from those of the last rendering as a tree.
    touched: BTreeSet<LineKey>,
    /// The tree of each kind of key, with the rules of the dispatch chain that jump to it.
    roots: BTreeMap<u8, (Node, String)>,
    /// Chains of earlier renderings.
    former: BTreeSet<String>,
}

/// A chain of the tree, or the dispatch chain itself, by what is below it.
#[derive(Debug)]
enum Node {
    /// Rules, and the chains that distinguish the ports of one address.
    Leaf { ports: Vec<String> },
    /// Chains that share this number of bits each, by these.
    Branch { bits: u32, below: BTreeMap<u128, Node> },
}

impl Node {
    /// The names of all chains below it.
    fn names(&self, space: KeySpace, chain: DispatchChain, out: &mut BTreeSet<String>) {
        match self {
            Self::Leaf { ports } => out.extend(ports.iter().cloned()),
            Self::Branch { bits, below } => {
                for (key, node) in below {
                    out.insert(space.name(chain, *key, *bits));
                    node.names(space, chain, out);
                }
            }
        }
    }
}

impl<K: Ord + Clone> DispatchRules<K> {
    /// No rules yet.
    #[must_use]
    pub const fn new(chain: DispatchChain) -> Self {
        Self {
            chain,
            rules: BTreeMap::new(),
            count: 0,
            sorted: BTreeMap::new(),
            unsorted: BTreeSet::new(),
            touched: BTreeSet::new(),
            roots: BTreeMap::new(),
            former: BTreeSet::new(),
        }
    }

    /// How many rules there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no rule.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of rules of each key; without a key, of those that have none.
    fn keys(&self, text: &str) -> BTreeMap<Option<LineKey>, usize> {
        let mut keys = BTreeMap::new();
        text.lines().for_each(|line| *keys.entry(LineKey::of(self.chain, line)).or_default() += 1);
        keys
    }

    /// Replaces the rules of a service port, which start with `-A CHAIN ` each; returns whether they differ.
    pub fn put(&mut self, port: &K, text: &str) -> bool {
        let known = self.rules.get(port).map_or("", |known| known);
        if known == text {
            return false;
        }
        let (before, after) = (self.keys(known), self.keys(text));
        for (key, count) in before {
            self.count -= count;
            let Some(key) = key else {
                self.unsorted.remove(port);
                continue;
            };
            self.sorted.remove(&(key, Some(port.clone())));
            self.touch(key);
        }
        for (key, count) in after {
            self.count += count;
            let Some(key) = key else {
                self.unsorted.insert(port.clone());
                continue;
            };
            self.sorted.insert((key, Some(port.clone())), count);
            self.touch(key);
        }
        if text.is_empty() {
            self.rules.remove(port);
        } else {
            self.rules.insert(port.clone(), text.into());
        }
        true
    }

    fn touch(&mut self, key: LineKey) {
        // Without a tree, all of it is rendered.
        if !self.roots.is_empty() {
            self.touched.insert(key);
        }
    }

    /// The rules of each service port.
    #[cfg(test)]
    pub(super) fn texts(&self) -> impl Iterator<Item = (&K, &str)> {
        self.rules.iter().map(|(port, text)| (port, &**text))
    }

    /// What was rendered is not known to be in the kernel: the next rendering has all chains.
    pub fn forget(&mut self) {
        self.touched.clear();
        for (kind, (node, _)) in std::mem::take(&mut self.roots) {
            node.names(KeySpace::of(kind), self.chain, &mut self.former);
        }
    }

    /// Renders the dispatch chain, as a tree if wanted: all rules of the dispatch chain itself, and the chains below it
    /// that may differ from the last rendering.
    pub fn render(&mut self, tree: bool) -> DispatchTree {
        let mut out = Output::default();
        if !tree {
            self.forget();
            let root = self.rules.values().map(|text| &**text).collect();
            return DispatchTree { root, subchains: Vec::new(), gone: std::mem::take(&mut self.former) };
        }
        out.gone = std::mem::take(&mut self.former);
        let (touched, mut old) = (std::mem::take(&mut self.touched), std::mem::take(&mut self.roots));
        let head = head(self.chain);
        let of_key = |key: LineKey, port: &K, each: &mut dyn FnMut(&str)| {
            let lines = self.rules.get(port).into_iter().flat_map(|text| text.lines());
            lines.filter(|line| LineKey::of(self.chain, line) == Some(key)).for_each(|line| each(rule(line, &head)));
        };
        let source = Source { chain: self.chain, sorted: &self.sorted, each: &of_key, touched: &touched };
        let mut roots = BTreeMap::new();
        let mut next = self.sorted.first_key_value().map(|((key, _), _)| key.kind);
        while let Some(kind) = next {
            let space = KeySpace::of(kind);
            let root = match old.remove(&kind) {
                Some(known) if !source.is_touched(kind, 0, 0) => known,
                known => source.build(space, known.map(|(node, _)| node), &Place::root(self.chain, kind), &mut out),
            };
            roots.insert(kind, root);
            let rest = (LineKey { kind: kind + 1, key: 0 }, None)..;
            next = self.sorted.range(rest).next().map(|((key, _), _)| key.kind);
        }
        for (kind, (node, _)) in old {
            node.names(KeySpace::of(kind), self.chain, &mut out.gone);
        }
        let mut root: String = roots.values().map(|(_, body)| body.as_str()).collect();
        for text in self.unsorted.iter().filter_map(|port| self.rules.get(port)) {
            let lines = text.lines().filter(|line| LineKey::of(self.chain, line).is_none());
            lines.for_each(|line| root.extend([line, "\n"]));
        }
        self.roots = roots;
        out.finish(root)
    }
}

/// How rules of a dispatch chain start.
fn head(chain: DispatchChain) -> String {
    format!("-A {} ", chain.static_chain().name())
}

fn rule<'a>(line: &'a str, head: &str) -> &'a str {
    line.strip_prefix(head).unwrap_or(line)
}

/// What was rendered.
#[derive(Default)]
struct Output {
    /// Chains with their levels.
    made: Vec<(u32, String, String)>,
    gone: BTreeSet<String>,
}

impl Output {
    fn finish(mut self, root: String) -> DispatchTree {
        // Jump targets come first: a write in several batches never jumps to an empty chain.
        self.made.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        for (_, name, _) in &self.made {
            self.gone.remove(name);
        }
        let subchains = self.made.into_iter().map(|(_, name, body)| (name, body)).collect();
        DispatchTree { root, subchains, gone: self.gone }
    }
}

/// A chain under construction.
struct Place {
    chain: String,
    /// Of its keys.
    kind: u8,
    /// What its keys share.
    prefix: u128,
    /// So many leading bits.
    shared_bits: u32,
    /// Levels above it.
    depth: u32,
}

impl Place {
    fn root(chain: DispatchChain, kind: u8) -> Self {
        Self { chain: chain.static_chain().name().to_owned(), kind, prefix: 0, shared_bits: 0, depth: 0 }
    }
}

/// Calls for each rule that an entry names, without the chain's name.
type ForEachRule<'a, L> = dyn Fn(LineKey, &L, &mut dyn FnMut(&str)) + 'a;

/// Rules by their keys.
struct Source<'a, L> {
    chain: DispatchChain,
    sorted: &'a Sorted<L>,
    each: &'a ForEachRule<'a, L>,
    touched: &'a BTreeSet<LineKey>,
}

/// The keys that start with the first bits of one.
fn keys(kind: u8, start: u128, bits: u32) -> std::ops::RangeInclusive<LineKey> {
    LineKey { kind, key: start }..=LineKey { kind, key: start | !mask(bits) }
}

impl<L: Ord> Source<'_, L> {
    /// The rules whose keys start with the first bits of one.
    fn entries(&self, kind: u8, start: u128, bits: u32) -> btree_map::Range<'_, (LineKey, Option<L>), usize> {
        let (first, last) = keys(kind, start, bits).into_inner();
        // Nothing comes before `None`.
        let end = match last.key.checked_add(1) {
            Some(key) => LineKey { kind, key },
            None => LineKey { kind: kind + 1, key: 0 },
        };
        self.sorted.range((first, None)..(end, None))
    }

    fn is_touched(&self, kind: u8, start: u128, bits: u32) -> bool {
        self.touched.range(keys(kind, start, bits)).next().is_some()
    }

    /// Renders a chain; returns it with its body, and adds those below it to `out`. What is below `old`, its last
    /// rendering, and is not touched stays as it is.
    fn build(&self, space: KeySpace, old: Option<Node>, at: &Place, out: &mut Output) -> (Node, String) {
        let mut body = String::new();
        let entries = || self.entries(at.kind, at.prefix, at.shared_bits);
        let (Some(((first, _), _)), Some(((last, _), _))) = (entries().next(), entries().next_back()) else {
            if let Some(old) = old {
                old.names(space, self.chain, &mut out.gone);
            }
            return (Node::Leaf { ports: Vec::new() }, body);
        };
        let width = space.width();
        let common_bits = (first.key ^ last.key).leading_zeros().min(width);
        let branch_at = (common_bits / BITS_PER_LEVEL * BITS_PER_LEVEL).max(at.shared_bits);
        let max_depth = space.depth();
        let is_long = || {
            let mut rules = 0;
            entries().any(|(_, count)| {
                rules += count;
                rules > MAX_LEAF_LINES
            })
        };
        if at.depth > 0 && (at.depth >= max_depth || branch_at >= width || !is_long()) {
            if let Some(old) = old {
                old.names(space, self.chain, &mut out.gone);
            }
            let mut ports = Vec::new();
            if matches!(space, KeySpace::Address(_)) && common_bits >= width && is_long() {
                ports = self.split_by_port(space, first.key, at, &mut body, out);
            } else {
                let mut push = |line: &str| body.extend(["-A ", at.chain.as_str(), " ", line, "\n"]);
                self.for_each_rule(at, &mut push);
            }
            return (Node::Leaf { ports }, body);
        }
        let verb = if at.depth == 0 { "-j" } else { "-g" };
        // The last level before the leaves distinguishes as many ports as a leaf may hold.
        let is_last = width == 16 && at.depth + 1 >= max_depth;
        let bits = (branch_at + BITS_PER_LEVEL).max(if is_last { width - BITS_PER_LEVEL } else { 0 }).min(width);
        let mut known = match old {
            Some(Node::Branch { bits: of, below }) if of == bits => below,
            Some(other) => {
                other.names(space, self.chain, &mut out.gone);
                BTreeMap::new()
            }
            None => BTreeMap::new(),
        };
        let local = match space {
            KeySpace::Port(_) if self.chain == DispatchChain::External && at.depth == 0 => {
                " -m addrtype --dst-type LOCAL"
            }
            _ => "",
        };
        let mut below = BTreeMap::new();
        let mut next = Some(first.key);
        while let Some(key) = next {
            let start = prefix(key, bits);
            let chain = space.name(self.chain, start, bits);
            let matching = space.matching(start, bits);
            let _ = writeln!(body, "-A {} {matching}{local} {verb} {chain}", at.chain);
            let node = match known.remove(&start) {
                Some(node) if !self.is_touched(at.kind, start, bits) => node,
                old => {
                    let child = Place { chain, kind: at.kind, prefix: start, shared_bits: bits, depth: at.depth + 1 };
                    let (node, body) = self.build(space, old, &child, out);
                    out.made.push((child.depth, child.chain, body));
                    node
                }
            };
            below.insert(start, node);
            let end = start | !mask(bits);
            next = end.checked_add(1).filter(|_| end < last.key).and_then(|after| {
                let rest = (LineKey { kind: at.kind, key: after }, None)..;
                self.sorted.range(rest).next().map(|((key, _), _)| key.key)
            });
        }
        Node::Branch { bits, below: known }.names(space, self.chain, &mut out.gone);
        (Node::Branch { bits, below }, body)
    }

    /// Calls for each rule below a chain, in order.
    fn for_each_rule(&self, at: &Place, each: &mut dyn FnMut(&str)) {
        for ((key, some), _) in self.entries(at.kind, at.prefix, at.shared_bits) {
            if let Some(some) = some {
                (self.each)(*key, some, each);
            }
        }
    }

    /// Branches on the ports of one address, by protocol and number; returns the names of the chains that do.
    fn split_by_port(
        &self,
        space: KeySpace,
        address: u128,
        at: &Place,
        body: &mut String,
        out: &mut Output,
    ) -> Vec<String> {
        let KeySpace::Address(family) = space else { return Vec::new() };
        let (mut ports, mut lines): (Sorted<usize>, Vec<String>) = Default::default();
        let mut of_all_ports = String::new();
        self.for_each_rule(at, &mut |line| match port(line) {
            Some((kind, key)) => {
                ports.insert((LineKey { kind, key }, Some(lines.len())), 1);
                lines.push(line.to_owned());
            }
            None => of_all_ports.extend(["-A ", at.chain.as_str(), " ", line, "\n"]),
        });
        let kinds: BTreeSet<u8> = ports.keys().map(|(key, _)| key.kind).collect();
        let source = Source {
            chain: self.chain,
            sorted: &ports,
            each: &|_, line: &usize, each: &mut dyn FnMut(&str)| each(&lines[*line]),
            touched: &BTreeSet::new(),
        };
        let before = out.made.len();
        for kind in kinds {
            let space = KeySpace::PortAt(kind, family, address);
            let part = Place { chain: at.chain.clone(), kind, prefix: 0, shared_bits: 0, depth: at.depth };
            body.push_str(&source.build(space, None, &part, out).1);
        }
        body.push_str(&of_all_ports);
        out.made[before..].iter().map(|(_, name, _)| name.clone()).collect()
    }
}
