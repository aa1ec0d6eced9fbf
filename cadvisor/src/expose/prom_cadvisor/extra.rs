//! Families of what is counted now and then: states of tasks, huge pages, sockets.

use windlass_kit::expo::{Kind, Text};

use super::{Subject, float, put};
use crate::model::{HugePages, Seldom, Sockets, TCP_STATES, Udp};

type OfPages = (&'static str, &'static str, Kind, fn(&HugePages) -> u64);

const OF_PAGES: [OfPages; 3] = [
    ("container_hugetlb_failcnt", "Times that the limit of huge pages was hit", Kind::Counter, |p| p.failures),
    ("container_hugetlb_max_usage_bytes", "Most huge pages so far, in bytes", Kind::Gauge, |p| p.max_usage_bytes),
    ("container_hugetlb_usage_bytes", "Huge pages in use, in bytes", Kind::Gauge, |p| p.usage_bytes),
];

type OfTcp = (&'static str, &'static str, fn(&Sockets) -> &[u64; 11]);

const OF_TCP: [OfTcp; 2] = [
    ("container_network_tcp_usage_total", "TCP sockets of IPv4 by state", |s| &s.tcp),
    ("container_network_tcp6_usage_total", "TCP sockets of IPv6 by state", |s| &s.tcp6),
];

type OfUdp = (&'static str, &'static str, fn(&Sockets) -> &Udp);

const OF_UDP: [OfUdp; 2] = [
    ("container_network_udp_usage_total", "UDP sockets of IPv4, their queues in bytes and losses", |s| &s.udp),
    ("container_network_udp6_usage_total", "UDP sockets of IPv6, their queues in bytes and losses", |s| &s.udp6),
];

pub(super) fn families<'a>(subjects: &[Subject<'a>], page: &mut Text) {
    let seldom = |subject: &Subject<'a>| -> Option<&'a Seldom> { subject.row.map(|row| row.seldom.as_ref()) };
    let at = |subject: &Subject<'a>| Some(subject.sample.at.as_millisecond());
    let name = "container_tasks_state";
    page.family(name, "Processes by what they were doing when they were last counted", Kind::Gauge);
    for subject in subjects.iter().filter(|subject| subject.container_id.is_some()) {
        let Some(tasks) = seldom(subject).map(|seldom| seldom.tasks) else { continue };
        for (state, count) in [
            ("iowaiting", 0),
            ("running", tasks.running),
            ("sleeping", tasks.sleeping),
            ("stopped", tasks.stopped),
            ("uninterruptible", tasks.uninterruptible),
        ] {
            put(page, name, subject, &[("state", state)], float(count), at(subject));
        }
    }
    for (name, help, kind, value) in OF_PAGES {
        page.family(name, help, kind);
        for subject in subjects {
            for pages in seldom(subject).into_iter().flat_map(|seldom| &seldom.huge_pages) {
                put(page, name, subject, &[("pagesize", pages.size.as_str())], float(value(pages)), at(subject));
            }
        }
    }
    let sockets = |subject: &Subject<'a>| seldom(subject).and_then(|seldom| seldom.sockets_of.as_ref());
    for (name, help, of) in OF_TCP {
        page.family(name, help, Kind::Gauge);
        for subject in subjects {
            let Some(counts) = sockets(subject).map(of) else { continue };
            for (state, count) in TCP_STATES.into_iter().zip(counts) {
                put(page, name, subject, &[("tcp_state", state)], float(*count), at(subject));
            }
        }
    }
    for (name, help, of) in OF_UDP {
        page.family(name, help, Kind::Gauge);
        for subject in subjects {
            let Some(udp) = sockets(subject).map(of) else { continue };
            for (state, count) in [
                ("dropped", udp.dropped),
                ("listen", udp.listen),
                ("rxqueued", udp.rx_queued),
                ("txqueued", udp.tx_queued),
            ] {
                put(page, name, subject, &[("udp_state", state)], float(count), at(subject));
            }
        }
    }
}
