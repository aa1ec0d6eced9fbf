//! What kube-apiserver says of the rows of the tables in the directory above: how a row becomes requests, whoever is asked.
//! Unit tests ask our API with it. The test target `recordings` includes these files, asks a real server the same,
//! and writes the tables.

#![allow(dead_code, unused_imports, reason = "unit tests and recorders each use a part of it")]

mod changes;
mod objects;
mod pods;
mod reply_columns;
mod requests;
mod rows;
mod server;

use std::collections::BTreeMap;

pub(crate) use objects::{SAMPLES, name_of, object, sample};
pub(crate) use reply_columns::{Said, errors_of, warnings_of};
pub(crate) use rows::{rows, with, written};
pub(crate) use server::{Asking, Caller, Reply, Request, Server};

/// A table of recorded rows.
pub(crate) struct Table {
    /// The name of its file.
    pub(crate) name: &'static str,
    shape: Shape,
    /// There are more rows than this: a test over a table that became empty would check nothing.
    pub(crate) more_than: usize,
}

/// What the columns of a table are; the header of each table describes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Refusals,
    Changes,
    Warnings,
    WarningChanges,
    Tolerated,
    StoredChanges,
    VolumeChanges,
    PodSpecs,
    PodChanges,
    EphemeralContainers,
    SecurityProfiles,
    Requests,
    RequestWarnings,
}

const fn table(name: &'static str, shape: Shape, more_than: usize) -> Table {
    Table { name, shape, more_than }
}

/// All tables.
pub(crate) const TABLES: [Table; 20] = [
    table("refusals", Shape::Refusals, 1000),
    table("changes", Shape::Changes, 200),
    table("warnings", Shape::Warnings, 40),
    table("warning_changes", Shape::WarningChanges, 15),
    table("tolerated", Shape::Tolerated, 100),
    table("stored_changes", Shape::StoredChanges, 80),
    table("volume_changes", Shape::VolumeChanges, 40),
    table("scheduling", Shape::PodSpecs, 250),
    table("pod_volumes", Shape::PodSpecs, 50),
    table("pod_warnings", Shape::PodSpecs, 100),
    table("pod_security", Shape::PodSpecs, 100),
    table("pod_fields", Shape::PodSpecs, 100),
    table("pod_resources", Shape::PodSpecs, 80),
    table("pod_containers", Shape::PodSpecs, 250),
    table("pod_volume_sources", Shape::PodSpecs, 150),
    table("pod_changes", Shape::PodChanges, 170),
    table("ephemeral_containers", Shape::EphemeralContainers, 80),
    table("security_profiles", Shape::SecurityProfiles, 100),
    table("requests", Shape::Requests, 300),
    table("request_warnings", Shape::RequestWarnings, 10),
];

/// A row with what a server said.
pub(crate) struct Answered<'a> {
    /// The number of its line.
    pub(crate) line: usize,
    /// Its columns that say what is asked.
    pub(crate) given: Vec<&'a str>,
    /// Its columns with what was recorded.
    pub(crate) recorded: Vec<&'a str>,
    /// What the server said, for each of them.
    pub(crate) said: anyhow::Result<Vec<Said>>,
}

impl Table {
    /// Asks a server for the answers to some rows of this table. Rows that need the same objects are asked one after the
    /// other, in their order.
    pub(crate) async fn answers<'a, S: Server>(
        &self,
        asking: &mut Asking<S>,
        rows: impl IntoIterator<Item = (usize, &'a str)>,
    ) -> anyhow::Result<Vec<Answered<'a>>> {
        let mut by_state: BTreeMap<String, Vec<(usize, Vec<&str>)>> = BTreeMap::new();
        for (line, row) in rows {
            let columns: Vec<&str> = row.split('\t').collect();
            anyhow::ensure!(columns.len() > self.shape.given(), "{}: too few columns: {row}", self.name);
            by_state.entry(self.shape.state(line, &columns)).or_default().push((line, columns));
        }
        let mut answers = Vec::new();
        for (state, rows) in by_state {
            asking.start_afresh().await?;
            let prepared = self.shape.prepare(asking, &state).await;
            for (line, columns) in rows {
                let said = match &prepared {
                    Ok(()) => self.shape.answer(asking, &columns).await,
                    Err(error) => Err(anyhow::anyhow!("{error:#}")),
                };
                let (given, recorded) = columns.split_at(self.shape.given());
                let (given, recorded) = (given.to_vec(), recorded.to_vec());
                answers.push(Answered { line, given, recorded, said });
            }
        }
        answers.sort_by_key(|answered| answered.line);
        Ok(answers)
    }
}

impl Shape {
    /// How many columns say what is asked.
    fn given(self) -> usize {
        match self {
            Self::PodSpecs | Self::EphemeralContainers => 2,
            Self::SecurityProfiles => 3,
            Self::Refusals | Self::Warnings | Self::Tolerated | Self::Requests | Self::RequestWarnings => 4,
            Self::Changes | Self::WarningChanges | Self::VolumeChanges | Self::PodChanges => 5,
            Self::StoredChanges => 6,
        }
    }

    /// What must be there when a row is asked: rows with the same text share it.
    fn state(self, line: usize, columns: &[&str]) -> String {
        match self {
            Self::Requests | Self::RequestWarnings | Self::EphemeralContainers => columns[0].to_owned(),
            Self::Tolerated | Self::StoredChanges | Self::VolumeChanges | Self::PodChanges => format!("{line:06}"),
            _ => String::new(),
        }
    }

    async fn prepare<S: Server>(self, asking: &mut Asking<S>, state: &str) -> anyhow::Result<()> {
        match self {
            Self::Requests | Self::RequestWarnings => requests::prepare(asking, state).await,
            Self::EphemeralContainers => pods::prepare(asking, state).await,
            _ => Ok(()),
        }
    }

    async fn answer<S: Server>(self, asking: &mut Asking<S>, columns: &[&str]) -> anyhow::Result<Vec<Said>> {
        match self {
            Self::Refusals => objects::refusal(asking, columns).await,
            Self::Warnings => objects::warnings(asking, columns).await,
            Self::Changes => changes::errors(asking, columns).await,
            Self::WarningChanges => changes::warnings(asking, columns).await,
            Self::Tolerated => changes::tolerated(asking, columns).await,
            Self::StoredChanges => changes::of_stored(asking, columns).await,
            Self::VolumeChanges => changes::of_volumes(asking, columns).await,
            Self::PodSpecs => pods::spec(asking, columns).await,
            Self::PodChanges => pods::change(asking, columns).await,
            Self::EphemeralContainers => pods::ephemeral_containers(asking, columns).await,
            Self::SecurityProfiles => pods::security_profiles(asking, columns).await,
            Self::Requests => requests::answer(asking, columns).await,
            Self::RequestWarnings => requests::warnings(asking, columns).await,
        }
    }
}

/// The columns of a row by their number.
fn columns<'a, const N: usize>(all: &[&'a str]) -> anyhow::Result<[&'a str; N]> {
    all.try_into().map_err(|_| anyhow::anyhow!("{} columns, not {N}: {all:?}", all.len()))
}
