//! Pressure of one cgroup: three files that cost the kernel a sum over all processors each, so that only those are read
//! again that can have changed.

use std::path::Path;

use super::kept::{Buffer, Kept, text_of};
use crate::{
    model::{Pressure, Psi},
    parse::psi,
};

/// `cpu.pressure`, `memory.pressure` and `io.pressure`, in this order.
#[derive(Debug)]
pub(super) struct PressureFiles([PressureFile; 3]);

#[derive(Debug)]
struct PressureFile {
    file: Option<Kept>,
    /// For how long anything on the machine had waited when this was read last; none where the kernel does not tell.
    machine_us: Option<u64>,
    /// A look since the last wait has found no average above zero: what has just begun to wait shows in none.
    calm: bool,
}

impl PressureFiles {
    /// Opens those that are there: plain v1 has none.
    pub(super) fn open(dir: Option<&Path>) -> Self {
        let names = ["cpu.pressure", "memory.pressure", "io.pressure"];
        Self(names.map(|name| PressureFile {
            file: dir.and_then(|dir| Kept::open(dir, name)),
            machine_us: None,
            calm: false,
        }))
    }

    /// Reads what can be another than `last`. Whoever waits in a cgroup waits on the machine, so that one that `ran` is as
    /// it was where the machine's own time stands still; and one that did not run has nothing that begins to wait.
    /// Averages fall by themselves, until there are none. Without a `last` all is read.
    pub(super) fn read(
        &mut self,
        ran: bool,
        last: Option<&Pressure>,
        machine: &Pressure,
        buffer: &mut Buffer,
    ) -> Pressure {
        let [cpu, memory, io] = &mut self.0;
        let mut read = |file: &mut PressureFile, of: fn(&Pressure) -> Option<Psi>| {
            let machine_us = of(machine).map(|psi| psi.some.total_us);
            let waited = ran && (machine_us.is_none() || machine_us != file.machine_us);
            match last {
                Some(last) if file.calm && !waited => of(last),
                _ => {
                    let found = text_of(file.file.as_ref(), buffer).and_then(psi::pressure);
                    file.machine_us = machine_us;
                    file.calm = !waited && found.as_ref().is_none_or(Psi::is_calm);
                    found
                }
            }
        };
        Pressure { cpu: read(cpu, |of| of.cpu), memory: read(memory, |of| of.memory), io: read(io, |of| of.io) }
    }
}
