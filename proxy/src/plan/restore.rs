//! Renders batches of restore input: one for small changes; for large ones on nf_tables several, each of which leaves
//! a consistent ruleset and none of which splits a service port.

use std::collections::VecDeque;

use super::{
    BatchLimit, RulesetState, SyncPass, TableBatch, TreeChainId,
    base_chains::BaseChains,
    batch::{BatchBuilder, is_needed_first},
    lines,
};
use crate::{
    model::{Model, ServiceId},
    rules::{ChainId, StaticChain, Table},
};

impl RulesetState {
    /// The next batch to restore; `None` when all changes were handed out, until all of those are committed. Rules are rendered as they are handed out,
    /// so that a large write is never in memory as a whole. Call [`commit`](Self::commit) for each batch that was
    /// applied, before the next but one is requested; hand one that failed back to [`abandon`](Self::abandon): each
    /// rule is handed out once.
    pub fn next_batch(&mut self, model: &Model, limit: BatchLimit) -> Option<TableBatch> {
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            // What is handed out and not committed would be handed out again.
            None if self.handed_out > 0 => return None,
            None => SyncPass::new(self.take_dirty(model)),
        };
        let batch = self.next_of(&mut pass, model, limit);
        if batch.is_some() {
            self.pass = Some(pass);
            self.handed_out += 1;
        }
        batch
    }

    /// The dirty Services, last first, in order of cluster IP as the rules of dispatch chains are.
    fn take_dirty(&mut self, model: &Model) -> Vec<ServiceId> {
        let family = self.settings().family;
        let mut queue: Vec<ServiceId> = std::mem::take(&mut self.dirty).into_iter().collect();
        queue.sort_by_cached_key(|id| {
            std::cmp::Reverse((model.service(id).and_then(|s| s.cluster_ip(family)), id.clone()))
        });
        queue
    }

    fn next_of(&mut self, pass: &mut SyncPass, model: &Model, limit: BatchLimit) -> Option<TableBatch> {
        if pass.ready.is_empty() && !pass.is_rendered {
            self.render_next(pass, model, limit);
        }
        pass.ready.pop_front()
    }

    /// Renders the next batches.
    fn render_next(&mut self, pass: &mut SyncPass, model: &Model, limit: BatchLimit) {
        let bound = limit.lines();
        let mut builder = BatchBuilder::default();
        loop {
            let full = builder.lines() > bound
                || (pass.large.is_none() && builder.services().len() >= self.services_per_batch);
            if full {
                if !std::mem::replace(&mut pass.chunked, true) {
                    let first = StaticChain::ALL.into_iter().filter(|chain| is_needed_first(*chain));
                    let first = first.filter_map(|chain| self.changed(chain, String::new()));
                    first.for_each(|(chain, body)| builder.static_chain(chain, &body));
                }
                pass.ready.extend(builder.finish());
                return;
            }
            if let Some((id, chains)) = &mut pass.large {
                if let Some((chain, body)) = chains.pop() {
                    builder.service_chain(chain, &body);
                    if builder.services().last() != Some(id) {
                        builder.services().push(id.clone());
                    }
                } else {
                    pass.large = None;
                }
                continue;
            }
            let Some(id) = pass.queue.pop() else { break };
            let mut chains = self.render_service(model, &id);
            if chains.is_empty() {
                continue;
            }
            if chains.iter().map(|(_, body)| lines(body)).sum::<usize>() > bound {
                // One after the other, each after its jump targets: a packet never meets an unfinished chain.
                chains.sort_by_key(|(chain, _)| std::cmp::Reverse(chain.write_order()));
                pass.large = Some((id, chains));
            } else {
                chains.iter().for_each(|(chain, body)| builder.service_chain(*chain, body));
                builder.services().push(id);
            }
        }
        pass.ready = self.remaining_batches(builder, pass.chunked, bound);
        pass.is_rendered = true;
    }

    /// The batches that follow the chains of Services: static chains, trees, jumps, deletions. `builder` contains the
    /// last chains of Services.
    fn remaining_batches(&mut self, mut builder: BatchBuilder, chunked: bool, bound: usize) -> VecDeque<TableBatch> {
        let (static_chains, trees) = self.render_shared_chains();
        let tree_lines: usize = trees.iter().map(|(_, body)| lines(body)).sum();
        let undeletable = &self.undeletable;
        let stays = |table: Table, name: &dyn std::fmt::Display| {
            !undeletable.is_empty() && undeletable.contains(&(table, name.to_string()))
        };
        let stale: Vec<ChainId> = self.stale_chains.iter().filter(|c| !stays(Table::Nat, c)).copied().collect();
        let stale_trees: Vec<&TreeChainId> = self.stale_tree_chains.iter().filter(|id| !stays(id.0, &id.1)).collect();
        let unknown: Vec<&String> = self.unknown_chains.iter().filter(|name| !stays(Table::Nat, name)).collect();
        let deletions = stale.len() + unknown.len() + stale_trees.len();
        let chunked = chunked || builder.lines() + tree_lines + deletions > bound;
        let bound = if chunked { bound } else { usize::MAX };
        let mut out = VecDeque::new();
        // Jump targets come first.
        let (first, last): (Vec<_>, Vec<_>) = static_chains.into_iter().partition(|(f, _)| is_needed_first(*f));
        if chunked {
            first.iter().for_each(|(chain, body)| builder.static_chain(*chain, body));
        }
        for (id, body) in trees {
            if builder.lines() > bound {
                out.extend(std::mem::take(&mut builder).finish());
            }
            builder.tree_chain(id, &body);
        }
        if chunked {
            out.extend(std::mem::take(&mut builder).finish());
            last.iter().for_each(|(chain, body)| builder.static_chain(*chain, body));
        } else {
            // A single batch: static chains first, as kube-proxy writes them.
            let mut shared = BatchBuilder::default();
            last.iter().chain(&first).for_each(|(chain, body)| shared.static_chain(*chain, body));
            builder = shared.before(builder);
        }
        if self.kubelet_firewall_missing {
            let written = &builder.changes(Table::Filter).static_chains;
            if !written.iter().any(|(f, _)| *f == StaticChain::FilterKubeletFirewall) {
                builder.chain(Table::Filter, &StaticChain::FilterKubeletFirewall.name(), "");
            }
            builder.changes(Table::Filter).creates_kubelet_firewall = true;
        }
        self.base_chains.iter().flat_map(BaseChains::missing).for_each(|index| builder.jump(index));
        if chunked {
            out.extend(std::mem::take(&mut builder).finish());
        }
        // Stale chains may jump to each other: all are flushed before the first is deleted.
        for flush in [true, false] {
            for chain in &stale {
                if builder.lines() > bound {
                    out.extend(std::mem::take(&mut builder).finish());
                }
                builder.remove(Table::Nat, chain, flush);
                let changes = builder.changes(Table::Nat);
                if flush { &mut changes.flushed } else { &mut changes.deleted }.push(*chain);
            }
            for id in &stale_trees {
                builder.remove(id.0, &id.1, flush);
                let changes = builder.changes(id.0);
                if flush { &mut changes.flushed_tree_chains } else { &mut changes.deleted_tree_chains }
                    .push((*id).clone());
            }
            for name in &unknown {
                builder.remove(Table::Nat, name, flush);
                if !flush {
                    builder.changes(Table::Nat).deleted_unknown.push((*name).clone());
                }
            }
        }
        out.extend(builder.finish());
        // Apart from all else, since the deletion of a rule that somebody else has deleted meanwhile is refused.
        let mut copies = BatchBuilder::default();
        self.base_chains
            .iter()
            .flat_map(BaseChains::surplus)
            .for_each(|(index, count)| copies.delete_copies(index, count));
        out.extend(copies.finish());
        out
    }
}
