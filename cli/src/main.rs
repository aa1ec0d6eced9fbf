//! The `windlass` program: reads the command line and configuration, then runs one command.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "what tests write is no secret"))]

use std::process::ExitCode;

use clap::Parser as _;

mod assemble;
mod commands;
mod config;
mod envtest;
mod exit;
mod instance;
mod join;
mod logging;
mod reload;
mod service;
mod systemd;

/// Returns memory to the kernel after a burst of pods; glibc's arenas never shrink. Its options are in
/// `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if let Some(code) = envtest::run_server(std::env::args_os()) {
        return code;
    }
    let cli = match commands::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no failures.
            let code = if error.use_stderr() { exit::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => exit::report(&error),
    }
}
