//! The clients that may call, as used: by token, and by the name in a certificate.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::bearer::TokenDigest;

/// The clients that may call, by token and certificate. Tokens are kept as digests in a map, so a lookup takes the same
/// time among a thousand clients as among two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clients {
    tokens: HashMap<TokenDigest, Arc<str>>,
    certificates: HashMap<SubjectName, Arc<str>>,
}

impl Clients {
    /// Returns the names of all clients, sorted.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        let names: BTreeSet<&Arc<str>> = self.tokens.values().chain(self.certificates.values()).collect();
        names.into_iter().cloned().collect()
    }

    /// Adds a client's token.
    ///
    /// # Errors
    /// The name of another client that has the token. Nothing is then added.
    pub(crate) fn add_token(&mut self, client: &Arc<str>, token: &str) -> Result<(), Arc<str>> {
        let owner = self.tokens.entry(TokenDigest::of(token)).or_insert_with(|| Arc::clone(client));
        if owner == client { Ok(()) } else { Err(Arc::clone(owner)) }
    }

    /// Adds the name in a client's certificate.
    ///
    /// # Errors
    /// The name of another client that has it. Nothing is then added.
    pub(crate) fn add_certificate(&mut self, client: &Arc<str>, name: SubjectName) -> Result<(), Arc<str>> {
        let owner = self.certificates.entry(name).or_insert_with(|| Arc::clone(client));
        if owner == client { Ok(()) } else { Err(Arc::clone(owner)) }
    }

    /// Returns the client of a certificate: of the first of its names that belongs to a client.
    pub(crate) fn by_certificate(&self, names: &[SubjectName]) -> Option<&Arc<str>> {
        names.iter().find_map(|name| self.certificates.get(name))
    }

    /// Returns the client of a token.
    pub(crate) fn by_token(&self, token: TokenDigest) -> Option<&Arc<str>> {
        self.tokens.get(&token)
    }

    /// Returns whether any client has a token.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }
}

/// A subject alternative name of a certificate. Only names of the same kind are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SubjectName {
    /// A host name, in lower case and without a trailing dot. A wildcard is an ordinary name, not a pattern.
    Dns(String),
    /// A URI as written, such as `spiffe://example.org/billing`.
    Uri(String),
    /// An IP address.
    Ip(IpAddr),
    /// An e-mail address as written.
    Email(String),
}

impl SubjectName {
    /// Parses a name; its form decides the kind.
    pub(crate) fn parse(text: &str) -> Option<SubjectName> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
        if let Ok(address) = text.parse() {
            Some(SubjectName::Ip(address))
        } else if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            None
        } else if text.split_once(':').is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty()) {
            Some(SubjectName::Uri(text.to_owned()))
        } else if text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()) {
            Some(SubjectName::Email(text.to_owned()))
        } else {
            text.bytes().all(is_name).then(|| SubjectName::dns(text))
        }
    }

    /// Returns a host name in its normal form.
    pub(crate) fn dns(name: &str) -> SubjectName {
        SubjectName::Dns(name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
    }
}
