//! Tokens of a file: comma-separated values of token, user name, uid and, in quotes if there are several, groups. The file
//! is read once, at start, as upstream's `--token-auth-file` is.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::of_this_server;
use crate::apiserver::{Authenticated, Refused, Remarks, TokenAuthenticator, User};
use ring::digest::{SHA256, digest};

/// Permissions that would let others use the tokens or make some: of the group all but reading.
const FORBIDDEN_MODE: u32 = 0o037;

/// Why a file of tokens cannot be used. Tokens never appear in errors.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It could not be read.
    #[error("the token file {path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Others could read or change it.
    #[error("the token file {path} cannot be used: {reason}")]
    Permissions {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A line is wrong.
    #[error("the token file {path} cannot be used: line {line}: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// Users by the hashes of their tokens: neither memory nor the time of a look-up reveals a token.
pub(crate) struct StaticTokens {
    users: HashMap<Vec<u8>, User>,
    /// What this server is as an audience.
    audiences: Vec<String>,
}

impl std::fmt::Debug for StaticTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StaticTokens").field(&self.users.len()).finish()
    }
}

fn hash(token: &str) -> Vec<u8> {
    digest(&SHA256, token.as_bytes()).as_ref().to_vec()
}

impl StaticTokens {
    /// Reads a file, which others must not be able to read.
    ///
    /// # Errors
    /// What is wrong, with the line.
    pub(crate) fn read(path: &Path, audiences: &[String]) -> Result<Self, TokenFileError> {
        let failed = |source| TokenFileError::Read { path: path.to_owned(), source };
        let metadata = fs::metadata(path).map_err(failed)?;
        if let Some(reason) = wrong_permissions(metadata.permissions().mode(), metadata.uid()) {
            return Err(TokenFileError::Permissions { path: path.to_owned(), reason });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text, audiences).map_err(|(line, reason)| TokenFileError::Line {
            path: path.to_owned(),
            line,
            reason,
        })
    }

    /// Reads the lines; of an error the number of the line and the reason.
    fn parse(text: &str, audiences: &[String]) -> Result<Self, (usize, String)> {
        let mut users = HashMap::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |reason: String| (at + 1, reason);
            let fields = fields(line).map_err(|why| wrong(why.to_owned()))?;
            let [token, name, uid, rest @ ..] = fields.as_slice() else {
                let columns = fields.len();
                return Err(wrong(format!(
                    "must have at least 3 columns (token, user name, user uid), found {columns}"
                )));
            };
            if token.is_empty() || name.is_empty() {
                return Err(wrong("the token and the user name must not be empty".to_owned()));
            }
            let groups = rest.first().map(|groups| groups.split(',').map(str::trim).filter(|g| !g.is_empty()));
            let user = User {
                name: name.clone(),
                uid: uid.clone(),
                groups: groups.into_iter().flatten().map(str::to_owned).collect(),
                ..User::default()
            };
            if users.insert(hash(token), user).is_some() {
                return Err(wrong("its token is that of an earlier line".to_owned()));
            }
        }
        Ok(Self { users, audiences: audiences.to_vec() })
    }
}

impl TokenAuthenticator for StaticTokens {
    fn authenticate(&self, token: &str, audiences: &[&str]) -> Result<Authenticated, Refused> {
        let audiences = of_this_server(audiences, &self.audiences)?;
        let user = self.users.get(&hash(token)).cloned().ok_or_else(Refused::default)?;
        Ok(Authenticated { user, audiences, remarks: Remarks::default() })
    }
}

/// What is wrong with mode and owner of a file of tokens. Pure.
fn wrong_permissions(mode: u32, owner: u32) -> Option<String> {
    if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
        return Some(format!("it belongs to user {owner}, who can change it; run chown root on it"));
    }
    let mode = mode & 0o777;
    (mode & FORBIDDEN_MODE != 0)
        .then(|| format!("its mode is {mode:04o}, so others can read or change it; run chmod 600 on it"))
}

/// The fields of one line. A field in quotes may hold commas, and quotes doubled.
fn fields(line: &str) -> Result<Vec<String>, &'static str> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => until_quote(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                if rest[..end].contains('"') {
                    return Err("a quote stands within a field without quotes");
                }
                (rest[..end].to_owned(), &rest[end..])
            }
        };
        fields.push(field);
        rest = match after.strip_prefix(',') {
            Some(after) => after,
            None if after.is_empty() => return Ok(fields),
            None => return Err("a field goes on after its closing quote"),
        };
    }
}

/// The text up to the closing quote, and what follows that.
fn until_quote(quoted: &str) -> Result<(String, &str), &'static str> {
    let mut field = String::new();
    let mut rest = quoted;
    loop {
        let (text, after) = rest.split_once('"').ok_or("a quote is not closed")?;
        field.push_str(text);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Ok((field, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_identity::service_account_tokens::ISSUER;

    use super::*;

    #[test]
    fn a_line_names_a_token_and_its_user() {
        let text = "t1,ann,1\n\nt2,bob,u-2,\"dev, ops\"\nt3,\"b\"\"q\",,g\n";
        let tokens = StaticTokens::parse(text, &[ISSUER.to_owned()]).unwrap();
        let known = |token: &str, audiences: &[&str]| {
            tokens.authenticate(token, audiences).map(|known| {
                let User { name, uid, groups, .. } = known.user;
                format!("{name} {uid} {}", groups.join("+"))
            })
        };
        let is = |text: &str| Ok(text.to_owned());
        assert_eq!(known("t1", &[]), is("ann 1 "));
        assert_eq!(known("t2", &[ISSUER, "x"]), is("bob u-2 dev+ops"));
        assert_eq!(known("t3", &[]), is("b\"q  g"));
        for (token, audiences) in [("t4", &[][..]), ("", &[]), ("t1", &["x"])] {
            assert_eq!(known(token, audiences), Err(Refused::default()), "{token}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_by_its_line_and_without_the_token() {
        for (text, line, words) in [
            ("a,b,c\nsecret,user", 2, "at least 3 columns (token, user name, user uid), found 2"),
            (",user,1", 1, "must not be empty"),
            ("secret,,1", 1, "must not be empty"),
            ("secret,a,1\nb,b,b\nsecret,c,1", 3, "that of an earlier line"),
            ("secret,a,1,\"x", 1, "is not closed"),
            ("secret,a,1,\"x\"y", 1, "goes on after its closing quote"),
            ("secret,a\"b,1", 1, "within a field without quotes"),
        ] {
            let (at, why) = StaticTokens::parse(text, &[]).unwrap_err();
            assert_eq!(at, line, "{text}");
            assert!(why.contains(words) && !why.contains("secret"), "{text}: {why}");
        }
    }

    #[test]
    fn others_must_not_read_or_change_the_file() {
        let me = nix::unistd::geteuid().as_raw();
        for (mode, good) in
            [(0o600, true), (0o400, true), (0o640, true), (0o644, false), (0o660, false), (0o602, false)]
        {
            assert_eq!(wrong_permissions(0o100_000 | mode, me).is_none(), good, "{mode:o}");
        }
        assert!(wrong_permissions(0o600, me + 1).is_some());
    }
}
