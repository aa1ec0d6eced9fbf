//! Families of slow counters: states of tasks, huge pages, sockets.

use windlass_kit::prometheus::{Kind, Text};

use super::{MetricSource, float, put};
use crate::model::{HugePages, SlowStats, Sockets, TCP_STATES, Udp};

type HugePagesMetric = (&'static str, &'static str, Kind, fn(&HugePages) -> u64);

const HUGE_PAGES_METRICS: [HugePagesMetric; 3] = [
    ("container_hugetlb_failcnt", "Times that the limit of huge pages was hit", Kind::Counter, |p| p.failures),
    ("container_hugetlb_max_usage_bytes", "Most huge pages so far, in bytes", Kind::Gauge, |p| p.max_usage_bytes),
    ("container_hugetlb_usage_bytes", "Huge pages in use, in bytes", Kind::Gauge, |p| p.usage_bytes),
];

type TcpMetric = (&'static str, &'static str, fn(&Sockets) -> &[u64; 11]);

const TCP_METRICS: [TcpMetric; 2] = [
    ("container_network_tcp_usage_total", "TCP sockets of IPv4 by state", |s| &s.tcp),
    ("container_network_tcp6_usage_total", "TCP sockets of IPv6 by state", |s| &s.tcp6),
];

type UdpMetric = (&'static str, &'static str, fn(&Sockets) -> &Udp);

const UDP_METRICS: [UdpMetric; 2] = [
    ("container_network_udp_usage_total", "UDP sockets of IPv4, their queues in bytes and losses", |s| &s.udp),
    ("container_network_udp6_usage_total", "UDP sockets of IPv6, their queues in bytes and losses", |s| &s.udp6),
];

pub(super) fn render<'a>(sources: &[MetricSource<'a>], page: &mut Text) {
    let slow = |source: &MetricSource<'a>| -> Option<&'a SlowStats> { source.row.map(|row| row.slow.as_ref()) };
    let at = |source: &MetricSource<'a>| Some(source.sample.moment.wall.as_millisecond());
    let name = "container_tasks_state";
    page.family(name, "Processes by what they were doing when they were last counted", Kind::Gauge);
    for source in sources.iter().filter(|source| source.container_id.is_some()) {
        let Some(tasks) = slow(source).and_then(|slow| slow.tasks) else { continue };
        for (state, count) in [
            ("iowaiting", 0),
            ("running", tasks.running),
            ("sleeping", tasks.sleeping),
            ("stopped", tasks.stopped),
            ("uninterruptible", tasks.uninterruptible),
        ] {
            put(page, name, source, &[("state", state)], float(count), at(source));
        }
    }
    for (name, help, kind, value) in HUGE_PAGES_METRICS {
        page.family(name, help, kind);
        for source in sources {
            for pages in slow(source).into_iter().flat_map(|slow| &slow.huge_pages) {
                put(page, name, source, &[("pagesize", pages.size.as_str())], float(value(pages)), at(source));
            }
        }
    }
    let sockets = |source: &MetricSource<'a>| slow(source).and_then(|slow| slow.sockets_of.as_ref());
    for (name, help, of) in TCP_METRICS {
        page.family(name, help, Kind::Gauge);
        for source in sources {
            let Some(counts) = sockets(source).map(of) else { continue };
            for (state, count) in TCP_STATES.into_iter().zip(counts) {
                put(page, name, source, &[("tcp_state", state)], float(*count), at(source));
            }
        }
    }
    for (name, help, of) in UDP_METRICS {
        page.family(name, help, Kind::Gauge);
        for source in sources {
            let Some(udp) = sockets(source).map(of) else { continue };
            for (state, count) in [
                ("dropped", udp.dropped),
                ("listen", udp.listen),
                ("rxqueued", udp.rx_queued),
                ("txqueued", udp.tx_queued),
            ] {
                put(page, name, source, &[("udp_state", state)], float(count), at(source));
            }
        }
    }
}
