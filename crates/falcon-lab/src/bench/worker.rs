//! Processes that measure something in a memory of their own. Requests and answers are lines of text.

use std::io::{BufRead, BufReader, Write};
use std::process::{self, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use super::error::BenchError;

/// A process that answers each line with a line.
pub(super) struct Worker {
    /// What it measures, for error messages.
    name: String,
    process: process::Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a program.
    pub fn start(name: &str, command: &mut Command) -> Result<Self, BenchError> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| {
            failed(name, format!("cannot be started: {}: {error}", command.get_program().to_string_lossy()))
        })?;
        let requests = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Ok(Self { name: name.into(), process, requests, answers })
    }

    /// Sends a line, and returns the answer.
    pub fn ask(&mut self, request: &str) -> Result<String, BenchError> {
        // If the process has ended, reading its answer fails with a better reason than a closed pipe.
        let _ = self.requests.write_all(format!("{request}\n").as_bytes());
        self.answer()
    }

    /// Reads the next line.
    pub fn answer(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => {
                let reason = self.end_reason();
                Err(failed(&self.name, reason))
            }
            Ok(_) => Ok(line.trim_end().into()),
            Err(error) => Err(failed(&self.name, format!("sent something that is not text: {error}"))),
        }
    }

    /// The error for an invalid answer.
    pub fn invalid(&self, line: &str, error: impl std::fmt::Display) -> BenchError {
        failed(&self.name, format!("answered {line:?}: {error}"))
    }

    /// Describes how the process ended.
    fn end_reason(&mut self) -> String {
        match self.process.wait() {
            Ok(status) if out_of_memory(status) => format!("was killed ({status}); is there enough memory?"),
            Ok(status) => format!("ended early ({status})"),
            Err(error) => format!("ended early: {error}"),
        }
    }
}

/// Whether the process was killed by SIGKILL, which is how a system reclaims memory.
fn out_of_memory(status: ExitStatus) -> bool {
    #[cfg(unix)]
    return std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
    #[cfg(not(unix))]
    return false;
}

fn failed(name: &str, reason: String) -> BenchError {
    BenchError::Child { name: name.into(), reason }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// The answer of a shell script to one request.
    fn reply(script: &str) -> String {
        let mut child = Worker::start("falcon-1", Command::new("sh").args(["-c", script])).unwrap();
        child.ask("go").unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn early_ends_are_reported_with_their_reason() {
        assert_eq!(reply("read line; echo $line on; read line"), "go on");
        assert_eq!(reply("exit 3"), "the process that measures falcon-1 ended early (exit status: 3)");
        let killed = reply("kill -9 $$");
        assert!(killed.contains("SIGKILL") && killed.ends_with("is there enough memory?"), "{killed}");
        let aborted = reply("kill -ABRT $$");
        assert!(aborted.contains("SIGABRT") && !aborted.contains("memory"), "{aborted}");
        let none = Worker::start("falcon-1", &mut Command::new("/nowhere/python")).err().unwrap().to_string();
        assert!(none.contains("/nowhere/python: No such file"), "{none}");
    }
}
