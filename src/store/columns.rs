//! How domain values stand in columns (RUL-20): words of closed vocabularies, ids and JSON as text, moments as UTC
//! without zone.
//!
//! Reading is strict: an unknown word or a broken id is an error of the row, never a default (STYLE 8). No error here
//! repeats what it could not read, because that may be anything, a secret included.

use chrono::NaiveDateTime;
use diesel::backend::Backend;
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::expression::AsExpression;
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::Text;
use serde::Serialize;
use serde::de::DeserializeOwned;

use fountain_actors::domain::{Moment, UnknownWord};
use fountain_actors::ports::clock::cut;

/// A closed vocabulary of the domain, so that one pair of impls serves all of them.
pub trait Vocabulary: Copy + std::fmt::Debug + std::str::FromStr<Err = UnknownWord> {
    fn word(self) -> &'static str;
}

macro_rules! vocabularies {
    ($($path:path),+ $(,)?) => {$(
        impl Vocabulary for $path { fn word(self) -> &'static str { self.as_str() } }
    )+};
}

vocabularies! {
    fountain_actors::domain::agent::Runtime,
    fountain_actors::domain::conversation::ConversationStatus,
    fountain_actors::domain::conversation::SandboxApiAccess,
    fountain_actors::domain::conversation::Source,
    fountain_actors::domain::credit::LedgerKind,
    fountain_actors::domain::environment::NetworkingType,
    fountain_actors::domain::event::EventKind,
    fountain_actors::domain::event::RawStream,
    fountain_actors::domain::event::Stage,
    fountain_actors::domain::event::StageState,
    fountain_actors::domain::event::Stream,
    fountain_actors::domain::machine::DestroyReason,
    fountain_actors::domain::machine::MachineMode,
    fountain_actors::domain::machine::MachineStatus,
    fountain_actors::domain::machine::Provider,
    fountain_actors::domain::machine::Transition,
    fountain_actors::domain::operation::Outcome,
    fountain_actors::domain::operation::Verb,
    fountain_actors::domain::queue::RequestKind,
    fountain_actors::domain::queue::RequestSource,
    fountain_actors::domain::queue::RequestStatus,
    fountain_actors::domain::turn::Origin,
    fountain_actors::domain::turn::TurnStatus,
}

/// A word of a vocabulary in a text column. Reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsExpression, FromSqlRow)]
#[diesel(sql_type = Text)]
pub struct Word<T: Vocabulary>(pub T);

impl<T: Vocabulary, DB: Backend> ToSql<Text, DB> for Word<T>
where
    str: ToSql<Text, DB>,
{
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, DB>) -> serialize::Result {
        <str as ToSql<Text, DB>>::to_sql(self.0.word(), out)
    }
}

impl<T: Vocabulary, DB: Backend> FromSql<Text, DB> for Word<T>
where
    String: FromSql<Text, DB>,
{
    fn from_sql(raw: DB::RawValue<'_>) -> deserialize::Result<Self> {
        let word = <String as FromSql<Text, DB>>::from_sql(raw)?;
        Ok(Self(word.parse()?))
    }
}

/// An id read from a text column. Ids are written as [`key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromSqlRow)]
pub struct Id<T>(pub T);

impl<T, DB: Backend> FromSql<Text, DB> for Id<T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
    String: FromSql<Text, DB>,
{
    fn from_sql(raw: DB::RawValue<'_>) -> deserialize::Result<Self> {
        let text = <String as FromSql<Text, DB>>::from_sql(raw)?;
        Ok(Self(text.parse()?))
    }
}

/// A JSON value read from a text column. Values are written as [`json`].
#[derive(Clone, Debug, PartialEq, FromSqlRow)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, DB: Backend> FromSql<Text, DB> for Json<T>
where
    String: FromSql<Text, DB>,
{
    fn from_sql(raw: DB::RawValue<'_>) -> deserialize::Result<Self> {
        let text = <String as FromSql<Text, DB>>::from_sql(raw)?;
        // serde's message can quote the value; where it stands is enough.
        serde_json::from_str(&text)
            .map(Self)
            .map_err(|e| format!("JSON column cannot be read at column {}", e.column()).into())
    }
}

/// An id as its column holds it.
pub fn key(id: impl std::fmt::Display) -> String {
    id.to_string()
}

/// An optional id as its column holds it.
pub fn maybe_key(id: Option<impl std::fmt::Display>) -> Option<String> {
    id.map(|id| id.to_string())
}

/// The inside of an optional [`Id`], [`Word`] or [`Json`].
pub fn inner<C: Column>(column: Option<C>) -> Option<C::Value> {
    column.map(Column::into_value)
}

/// A wrapper of this file, taken apart by [`inner`].
pub trait Column {
    type Value;
    fn into_value(self) -> Self::Value;
}

impl<T> Column for Id<T> {
    type Value = T;
    fn into_value(self) -> T {
        self.0
    }
}

impl<T> Column for Json<T> {
    type Value = T;
    fn into_value(self) -> T {
        self.0
    }
}

impl<T: Vocabulary> Column for Word<T> {
    type Value = T;
    fn into_value(self) -> T {
        self.0
    }
}

/// A value as its JSON column holds it. What is stored is plain data with text keys, which always serializes.
pub fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("plain data with text keys serializes")
}

/// A moment as its column holds it: UTC, cut to microseconds, inside the years that sort as text in SQLite
/// (`ports::clock::after` saturates far beyond them).
pub fn at(moment: Moment) -> NaiveDateTime {
    let day = |year, month, day| chrono::NaiveDate::from_ymd_opt(year, month, day).unwrap_or_default();
    let first = day(1, 1, 1).and_time(chrono::NaiveTime::MIN);
    let last = day(9999, 12, 31).and_time(chrono::NaiveTime::MIN);
    cut(moment).naive_utc().clamp(first, last)
}

/// An optional moment as its column holds it.
pub fn maybe_at(moment: Option<Moment>) -> Option<NaiveDateTime> {
    moment.map(at)
}

/// A stored moment.
pub fn moment(stored: NaiveDateTime) -> Moment {
    stored.and_utc()
}

/// An optional stored moment.
pub fn maybe_moment(stored: Option<NaiveDateTime>) -> Option<Moment> {
    stored.map(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_at_the_end_of_time_still_sorts_as_text() {
        assert_eq!(at(Moment::MAX_UTC).format("%Y").to_string(), "9999");
        assert_eq!(at(Moment::MIN_UTC).format("%Y").to_string(), "0001");
    }
}
