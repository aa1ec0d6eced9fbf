//! Network: `/proc/PID/net/dev`, `tcp`, `udp` and their like of IPv6, `/proc/net/route`.

use super::{lines, number, words};
use crate::model::{Interface, InterfaceName, Udp};

/// Whether an interface only repeats the traffic of others: loopback, Docker's bridges, host ends of veth pairs.
pub(crate) fn is_inner(name: &[u8]) -> bool {
    let pod_pair = name.len() == 13
        && name.strip_prefix(b"wl").is_some_and(|rest| rest.iter().all(|byte| byte.is_ascii_hexdigit()));
    pod_pair
        || [&b"lo"[..], b"veth", b"docker", b"nerdctl"].iter().any(|prefix| name.starts_with(prefix))
        || is_user_bridge(name)
}

/// A bridge of a network that a user has made in Docker: `br-` and 12 hexadecimal digits. Bridges of others, such as
/// `br-ex`, may be the node's own uplink.
fn is_user_bridge(name: &[u8]) -> bool {
    name.strip_prefix(b"br-").is_some_and(|id| id.len() == 12 && id.iter().all(u8::is_ascii_hexdigit))
}

/// Interfaces in file order, inner ones left out. A bad row is skipped; it does not spoil the others.
pub(crate) fn devices(text: &[u8], out: &mut Vec<Interface>) {
    out.extend(lines(text).filter_map(device));
}

fn device(line: &[u8]) -> Option<Interface> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, numbers) = line.split_at(colon);
    let name = name.trim_ascii();
    if is_inner(name) {
        return None;
    }
    let mut columns = [0_u64; 16];
    let mut words = words(numbers.get(1..)?);
    for column in &mut columns {
        *column = number(words.next()?)?;
    }
    let [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, _, tx_bytes, tx_packets, tx_errors, tx_dropped, ..] =
        columns;
    Some(Interface {
        name: InterfaceName::new(name)?,
        rx_bytes,
        rx_packets,
        rx_errors,
        rx_dropped,
        tx_bytes,
        tx_packets,
        tx_errors,
        tx_dropped,
    })
}

/// The interface of the first default route in `/proc/net/route`: the mask counts, too, since VPNs add `0.0.0.0/1`.
pub(crate) fn default_interface(text: &[u8]) -> Option<InterfaceName> {
    lines(text).skip(1).find_map(|line| {
        let mut words = words(line);
        let name = words.next()?;
        let is_default = words.next() == Some(b"00000000") && words.nth(5) == Some(b"00000000");
        is_default.then(|| InterfaceName::new(name)).flatten()
    })
}

fn hex(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok())
}

/// The number of sockets of a protocol, TIME_WAIT included, in `/proc/PID/net/sockstat` and `sockstat6`; `None` when
/// they do not list it.
pub(crate) fn in_use(text: &[u8], protocol: &str) -> Option<u64> {
    let line = lines(text).find_map(|line| line.strip_prefix(protocol.as_bytes())?.strip_prefix(b":"))?;
    let mut words = words(line);
    let mut sum = None;
    while let (Some(name), Some(count)) = (words.next(), words.next()) {
        if matches!(name, b"inuse" | b"tw") {
            sum = Some(sum.unwrap_or(0_u64).saturating_add(number(count)?));
        }
    }
    sum
}

/// Sockets of `/proc/PID/net/tcp` by state.
pub(crate) fn tcp(text: &[u8], states: &mut [u64; 11]) {
    for line in lines(text).skip(1) {
        let state = words(line).nth(3).and_then(hex).and_then(|state| usize::try_from(state).ok());
        if let Some(count) = state.and_then(|state| states.get_mut(state.checked_sub(1)?)) {
            *count += 1;
        }
    }
}

/// Sockets of `/proc/PID/net/udp`.
pub(crate) fn udp(text: &[u8], found: &mut Udp) {
    for line in lines(text).skip(1) {
        let mut words = words(line);
        // The fifth word is `tx:rx`, the thirteenth the number of drops.
        let Some(queues) = words.nth(4) else { continue };
        let mut queues = queues.split(|byte| *byte == b':').map(|queue| hex(queue).unwrap_or(0));
        found.listen += 1;
        found.tx_queued = found.tx_queued.saturating_add(queues.next().unwrap_or(0));
        found.rx_queued = found.rx_queued.saturating_add(queues.next().unwrap_or(0));
        found.dropped = found.dropped.saturating_add(words.nth(7).and_then(number).unwrap_or(0));
    }
}
