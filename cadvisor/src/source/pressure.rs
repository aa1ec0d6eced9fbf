//! Pressure stall information of one cgroup: three files, each of which costs the kernel a sum over all processors, so
//! only those are read that can have changed.

use std::{io, path::Path};

use super::cached_file::{Buffer, CachedFile, text_of};
use crate::{
    model::{Pressure, Psi},
    parse::psi,
};

/// `cpu.pressure`, `memory.pressure` and `io.pressure`, in this order.
#[derive(Debug)]
pub(super) struct PressureFiles([PressureFile; 3]);

#[derive(Debug)]
struct PressureFile {
    file: Option<CachedFile>,
    /// The machine's total stall time when this was read last; `None` where the kernel has none.
    machine_us: Option<u64>,
    /// A read since the last stall found all averages zero: a stall that has just begun is not in them yet.
    decayed: bool,
}

impl PressureFiles {
    /// Opens the pressure files that exist: plain v1 has none.
    pub(super) fn open(dir: Option<&Path>) -> io::Result<Self> {
        let open = |name: &str| {
            let file = dir.map_or(Ok(None), |dir| CachedFile::open(dir, name))?;
            Ok::<_, io::Error>(PressureFile { file, machine_us: None, decayed: false })
        };
        Ok(Self([open("cpu.pressure")?, open("memory.pressure")?, open("io.pressure")?]))
    }

    /// Reads the files that can differ from `last`. A task that stalls in a cgroup stalls on the machine, so a cgroup
    /// that `ran` is unchanged while the machine's own total is; one that did not run has no new stalls. Averages decay
    /// by themselves, until they are zero. Without `last` all files are read.
    pub(super) fn read(
        &mut self,
        ran: bool,
        last: Option<&Pressure>,
        machine: &Pressure,
        buffer: &mut Buffer,
    ) -> io::Result<Pressure> {
        let [cpu, memory, io] = &mut self.0;
        let mut read = |file: &mut PressureFile, of: fn(&Pressure) -> Option<Psi>| {
            let machine_us = of(machine).map(|psi| psi.some.total_us);
            let waited = ran && (machine_us.is_none() || machine_us != file.machine_us);
            match last {
                Some(last) if file.decayed && !waited => Ok(of(last)),
                _ => {
                    let found = text_of(file.file.as_ref(), buffer)?.and_then(psi::pressure);
                    file.machine_us = machine_us;
                    file.decayed = !waited && found.as_ref().is_none_or(Psi::is_zero);
                    Ok::<_, io::Error>(found)
                }
            }
        };
        Ok(Pressure { cpu: read(cpu, |of| of.cpu)?, memory: read(memory, |of| of.memory)?, io: read(io, |of| of.io)? })
    }
}
