//! The host's resolv.conf: what is read of it is in it.

use windlass_kit::resolv_conf::ResolvConf;

pub(crate) fn run(text: &str) {
    let read = ResolvConf::parse(text);
    for word in read.servers.iter().chain(&read.searches).chain(&read.options) {
        assert!(!word.is_empty() && !word.contains(char::is_whitespace) && text.contains(word.as_str()), "{word:?}");
    }
}
