//! Measures the time to open a connection.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use crate::median;

/// The number of connections in a round.
const COUNT: usize = 500;
/// The number of rounds over all destinations, so that a slow phase of the machine affects all of them.
const ROUNDS: usize = 9;

/// Accepts and closes connections on a thread in this network namespace.
pub(crate) fn listen(address: &str) -> anyhow::Result<std::thread::JoinHandle<()>> {
    let listener = TcpListener::bind(address)?;
    Ok(std::thread::spawn(move || listener.incoming().for_each(drop)))
}

/// The connection time for each destination: the median of the rounds' medians.
pub(crate) fn p50(destinations: &[&str]) -> anyhow::Result<Vec<Duration>> {
    let destinations: Vec<SocketAddr> = destinations.iter().map(|to| to.parse()).collect::<Result<_, _>>()?;
    let mut medians = vec![Vec::new(); destinations.len()];
    for _ in 0..ROUNDS {
        for (to, medians) in destinations.iter().zip(&mut medians) {
            medians.push(round(*to)?);
        }
    }
    Ok(medians.into_iter().map(median).collect())
}

fn round(to: SocketAddr) -> anyhow::Result<Duration> {
    let mut times = Vec::with_capacity(COUNT);
    for i in 0..COUNT + 50 {
        let started = Instant::now();
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
        let took = started.elapsed();
        drop(stream);
        // The first ones are a warm-up.
        if i >= 50 {
            times.push(took);
        }
    }
    Ok(median(times))
}
