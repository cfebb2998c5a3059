//! Hostile and careless inputs. Every case is one entry of a table: the files, the command, and the words that the
//! program must print.
//!
//! To add a case, add an entry to the table that its input belongs to. Whatever a case expects, the suite also checks
//! that the program does not panic, stays within its memory and its time, and leaves every file that was there before
//! as it was.

mod case;
mod models;
mod runs;
mod text;
