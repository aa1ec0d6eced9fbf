//! Errors of the operating system in the words of Go, which users and alerts know from upstream's events and statuses:
//! `connection refused`, not `Connection refused (os error 111)`. Pure.

use std::io;

/// The text of an error that ends in an event or a status.
pub(crate) fn go_text(error: &io::Error) -> String {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::UnexpectedEof, None) => "EOF".to_owned(),
        (_, None) => error.to_string(),
        (_, Some(code)) => {
            let text = error.to_string();
            let text = text.strip_suffix(&format!(" (os error {code})")).unwrap_or(&text);
            // Go's table is that of the C library, with small letters at the start.
            let mut letters = text.chars();
            letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
        }
    }
}

/// A message with such errors in it, in the same words.
pub(crate) fn in_words_of_go(message: &str) -> String {
    const MARK: &str = " (os error ";
    let (mut out, mut rest) = (String::with_capacity(message.len()), message);
    while let Some((before, after)) = rest.split_once(MARK) {
        let Some((_, next)) = after.split_once(')').filter(|(code, _)| code.parse::<i32>().is_ok()) else {
            out.push_str(before);
            out.push_str(MARK);
            rest = after;
            continue;
        };
        // What the operating system says begins after the last colon.
        let (told, error) = before.rfind(": ").map_or(("", before), |colon| before.split_at(colon + 2));
        out.push_str(told);
        let mut letters = error.chars();
        out.extend(letters.next().into_iter().flat_map(char::to_lowercase));
        out.push_str(letters.as_str());
        rest = next;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_within_messages() {
        let error = |code: i32| io::Error::from_raw_os_error(code);
        let message =
            format!("tmpfs could not be mounted at /p: {}; x: {}.", error(nix::libc::EACCES), error(nix::libc::ENOENT));
        assert_eq!(
            in_words_of_go(&message),
            "tmpfs could not be mounted at /p: permission denied; x: no such file or directory."
        );
        for same in ["", "Nothing: Of it", "Broken (os error x) and (os error"] {
            assert_eq!(in_words_of_go(same), same);
        }
    }

    #[test]
    fn the_words_of_go() {
        for (code, text) in [
            (nix::libc::ECONNREFUSED, "connection refused"),
            (nix::libc::EHOSTUNREACH, "no route to host"),
            (nix::libc::ECONNRESET, "connection reset by peer"),
            (nix::libc::ENOENT, "no such file or directory"),
            (nix::libc::EIO, "input/output error"),
        ] {
            assert_eq!(go_text(&io::Error::from_raw_os_error(code)), text);
        }
        assert_eq!(go_text(&io::ErrorKind::UnexpectedEof.into()), "EOF");
        assert_eq!(go_text(&io::Error::other("as it is")), "as it is");
    }
}
