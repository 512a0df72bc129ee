//! The hello of a connection: who calls whom, proof that both hold the generation's key, and the
//! hashes of what the members must have in common. Pure: bytes in, bytes out.
//!
//! The caller sends `Hello`; the called answers with `Challenge`, its own hello preceded by its proof;
//! the caller answers with `Proof`; the called ends with `Accepted`. A proof is an HMAC-SHA256 under
//! the key over a label for the role and the hashes of both hellos, each with a fresh nonce, so that
//! neither can be replayed or reflected. The key itself never travels. Bodies are JSON whose unknown
//! fields are ignored, at most [`MAX_PAYLOAD`] bytes.

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::communicator::GroupIdentity;
use crate::tcp::HelloContext;

/// Version of the protocol. Majors must be equal, minors at most one apart.
pub(super) const PROTOCOL: Version = Version { major: 1, minor: 0 };
/// Bytes before each message's payload.
pub(super) const HEADER: usize = 8;
/// Longest payload that is read.
pub(super) const MAX_PAYLOAD: usize = 4096;
const MAGIC: [u8; 4] = *b"gsh1";
const PROOF: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) major: u16,
    pub(super) minor: u16,
}

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Hello = 1,
    Challenge = 2,
    Proof = 3,
    Accepted = 4,
    Refused = 5,
}

/// What one side says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: Version,
    pub(super) job_uid: String,
    pub(super) generation: u64,
    pub(super) rank: usize,
    pub(super) world_size: usize,
    /// Index of the channel, or [`super::LINK`].
    pub(super) lane: u8,
    pub(super) context: HelloContext,
    pub(super) nonce: String,
}

/// Why a connection is refused, as told to the other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The versions cannot work together.
    #[error("it speaks protocol {major}.{minor}, here {}.{}", PROTOCOL.major, PROTOCOL.minor)]
    Version {
        /// The refusing side's version.
        major: u16,
        /// Its minor part.
        minor: u16,
    },
    /// Another job.
    #[error("it belongs to another job")]
    Job,
    /// Another generation of the same job.
    #[error("it is in generation {generation}")]
    Generation {
        /// The refusing side's generation.
        generation: u64,
    },
    /// World sizes or ranks that do not fit together, or a lane that does not exist.
    #[error("it has another view of ranks and world size")]
    Membership,
    /// The key was not proved.
    #[error("it holds another key")]
    Key,
    /// The connection that was offered exists already.
    #[error("its group is complete already")]
    Complete,
}

/// The generation's key. Never printed.
#[derive(Clone)]
pub(super) struct Key(Vec<u8>);

impl Key {
    pub(super) fn new(bytes: &[u8]) -> Key {
        Key(bytes.to_vec())
    }
}

/// What this member brings to every handshake.
pub(super) struct Local {
    pub(super) identity: GroupIdentity,
    pub(super) context: HelloContext,
    pub(super) key: Key,
}

impl Local {
    pub(super) fn hello(&self, lane: u8, nonce: [u8; 32]) -> Vec<u8> {
        let hello = Hello {
            version: PROTOCOL,
            job_uid: self.identity.job_uid.clone(),
            generation: self.identity.generation,
            rank: self.identity.rank,
            world_size: self.identity.world_size,
            lane,
            context: self.context.clone(),
            nonce: hex::encode(nonce),
        };
        // A struct of strings and numbers always has a JSON form.
        serde_json::to_vec(&hello).unwrap_or_default()
    }

    /// Checks the facts for which no key is needed.
    fn check(&self, theirs: &Hello) -> Result<(), Refusal> {
        let mine = &self.identity;
        if theirs.version.major != PROTOCOL.major || theirs.version.minor.abs_diff(PROTOCOL.minor) > 1 {
            Err(Refusal::Version {
                major: PROTOCOL.major,
                minor: PROTOCOL.minor,
            })
        } else if theirs.job_uid != mine.job_uid {
            Err(Refusal::Job)
        } else if theirs.generation != mine.generation {
            Err(Refusal::Generation {
                generation: mine.generation,
            })
        } else if theirs.world_size != mine.world_size
            || theirs.rank >= mine.world_size
            || theirs.rank == mine.rank
            || theirs.lane > super::LINK
        {
            Err(Refusal::Membership)
        } else {
            Ok(())
        }
    }

    /// The called side's answer to a hello: the challenge's payload and the proof that it expects.
    pub(super) fn challenge(
        &self,
        hello: &[u8],
        nonce: [u8; 32],
    ) -> Result<(Hello, Vec<u8>, [u8; PROOF]), Option<Refusal>> {
        let theirs: Hello = serde_json::from_slice(hello).map_err(|_| None)?;
        self.check(&theirs)?;
        let mine = self.hello(theirs.lane, nonce);
        let mut payload = self.proof("gradsync called", hello, &mine).to_vec();
        payload.extend_from_slice(&mine);
        let expected = self.proof("gradsync caller", hello, &mine);
        Ok((theirs, payload, expected))
    }

    /// The caller's answer to a challenge by `rank`: the proof to send.
    pub(super) fn answer(
        &self,
        rank: usize,
        hello: &[u8],
        challenge: &[u8],
    ) -> Result<(Hello, [u8; PROOF]), Refusal> {
        let (proof, body) = challenge.split_at_checked(PROOF).ok_or(Refusal::Key)?;
        let expected = self.proof("gradsync called", hello, body);
        if !proves(&expected, proof) {
            return Err(Refusal::Key);
        }
        let theirs: Hello = serde_json::from_slice(body).map_err(|_| Refusal::Membership)?;
        self.check(&theirs)?;
        if theirs.rank != rank {
            return Err(Refusal::Membership);
        }
        Ok((theirs, self.proof("gradsync caller", hello, body)))
    }

    fn proof(&self, role: &str, caller: &[u8], called: &[u8]) -> [u8; PROOF] {
        // HMAC takes a key of any length; an impossible error yields a proof that nobody accepts.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.key.0) else {
            return [0; PROOF];
        };
        mac.update(role.as_bytes());
        mac.update(&Sha256::digest(caller));
        mac.update(&Sha256::digest(called));
        mac.finalize().into_bytes().into()
    }
}

/// Compares in a time that does not depend on where the bytes differ.
pub(super) fn proves(expected: &[u8; PROOF], given: &[u8]) -> bool {
    expected.as_slice().ct_eq(given).into()
}

pub(super) fn message(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.push(kind as u8);
    bytes.push(0);
    bytes.extend_from_slice(&(payload.len().min(usize::from(u16::MAX)) as u16).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

pub(super) fn refusal(refusal: &Refusal) -> Vec<u8> {
    message(Kind::Refused, &serde_json::to_vec(refusal).unwrap_or_default())
}

/// Kind and payload length of a header; `None` for foreign bytes and for lengths above the bound.
pub(super) fn parse_header(header: &[u8; HEADER]) -> Option<(Kind, usize)> {
    let [m0, m1, m2, m3, kind, _, l0, l1] = *header;
    let length = usize::from(u16::from_le_bytes([l0, l1]));
    let kind = [
        Kind::Hello,
        Kind::Challenge,
        Kind::Proof,
        Kind::Accepted,
        Kind::Refused,
    ]
    .into_iter()
    .find(|known| *known as u8 == kind)?;
    ([m0, m1, m2, m3] == MAGIC && length <= MAX_PAYLOAD).then_some((kind, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(rank: usize, key: &[u8]) -> Local {
        Local {
            identity: GroupIdentity {
                job_uid: "job".into(),
                generation: 3,
                rank,
                world_size: 3,
            },
            context: HelloContext::default(),
            key: Key::new(key),
        }
    }

    #[test]
    fn two_holders_of_the_key_prove_it_to_each_other_without_sending_it() {
        let key = b"0123456789abcdef0123456789abcdef";
        let (caller, called) = (local(2, key), local(0, key));
        let hello = caller.hello(1, [1; 32]);
        let (_, challenge, expected) = called.challenge(&hello, [2; 32]).unwrap();
        let (theirs, proof) = caller.answer(0, &hello, &challenge).unwrap();
        assert_eq!((theirs.rank, theirs.lane), (0, 1));
        assert!(proves(&expected, &proof));
        let sent = [hello, challenge, proof.to_vec()].concat();
        assert!(!sent.windows(key.len()).any(|window| window == key));
    }

    #[test]
    fn a_proof_under_another_key_nonce_or_role_is_none() {
        let (caller, called) = (local(2, b"one key"), local(0, b"other key"));
        let hello = caller.hello(0, [1; 32]);
        let (_, challenge, expected) = called.challenge(&hello, [2; 32]).unwrap();
        assert_eq!(caller.answer(0, &hello, &challenge), Err(Refusal::Key));
        let honest = local(0, b"one key");
        let (_, first, first_expected) = honest.challenge(&hello, [3; 32]).unwrap();
        assert_ne!(expected, first_expected);
        // Replayed against another nonce, and the called side's own proof sent back to it.
        let (_, proof) = caller.answer(0, &hello, &first).unwrap();
        let (_, second, second_expected) = honest.challenge(&hello, [4; 32]).unwrap();
        assert!(!proves(&second_expected, &proof));
        assert!(!proves(&second_expected, &second[..32]));
        assert!(!proves(&second_expected, &[]));
        assert_eq!(
            caller.answer(1, &hello, &first),
            Err(Refusal::Membership),
            "another rank answered"
        );
    }

    #[test]
    fn a_hello_of_another_job_generation_version_or_group_is_refused_with_the_reason() {
        let called = local(0, b"key");
        let refused = |change: &dyn Fn(&mut Hello)| {
            let mut hello: Hello = serde_json::from_slice(&local(2, b"key").hello(0, [0; 32])).unwrap();
            change(&mut hello);
            called
                .challenge(&serde_json::to_vec(&hello).unwrap(), [0; 32])
                .unwrap_err()
        };
        assert_eq!(
            refused(&|h| h.version.major = 2),
            Some(Refusal::Version { major: 1, minor: 0 })
        );
        assert_eq!(refused(&|h| h.job_uid = "other".into()), Some(Refusal::Job));
        assert_eq!(
            refused(&|h| h.generation = 2),
            Some(Refusal::Generation { generation: 3 })
        );
        for change in [
            (|h: &mut Hello| h.rank = 0) as fn(&mut Hello),
            |h| h.rank = 3,
            |h| h.world_size = 4,
            |h| h.lane = 9,
        ] {
            assert_eq!(refused(&change), Some(Refusal::Membership));
        }
        assert_eq!(called.challenge(b"{", [0; 32]).unwrap_err(), None);
        // One minor version apart, with a field that this version does not know: fine.
        let mut newer: serde_json::Value =
            serde_json::from_slice(&local(2, b"key").hello(0, [0; 32])).unwrap();
        newer["version"]["minor"] = 1.into();
        newer["later"] = "?".into();
        called
            .challenge(&serde_json::to_vec(&newer).unwrap(), [0; 32])
            .unwrap();
    }

    #[test]
    fn foreign_headers_and_lengths_above_the_bound_are_not_read() {
        let good = message(Kind::Hello, &[0; 16]);
        let header: [u8; HEADER] = good[..HEADER].try_into().unwrap();
        assert_eq!(parse_header(&header), Some((Kind::Hello, 16)));
        let mut long = header;
        long[6..8].copy_from_slice(&(MAX_PAYLOAD as u16 + 1).to_le_bytes());
        assert_eq!(parse_header(&long), None);
        assert_eq!(parse_header(b"GET / HT"), None);
    }
}
