//! Processes that measure: each has its memory to itself, and is asked by lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{self, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use super::error::BenchError;

/// A process that answers a line for a line.
pub(super) struct Child {
    /// What it measures, for messages.
    name: String,
    process: process::Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Child {
    /// This program once more.
    pub fn this_program(name: &str, args: &[&str]) -> Result<Self, BenchError> {
        let program = std::env::current_exe()
            .map_err(|error| failed(name, format!("cannot be started, for this program is nowhere: {error}")))?;
        Self::start(name, Command::new(program).args(args))
    }

    /// Another program.
    pub fn start(name: &str, command: &mut Command) -> Result<Self, BenchError> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| {
            failed(name, format!("cannot be started: {}: {error}", command.get_program().to_string_lossy()))
        })?;
        let requests = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Ok(Self { name: name.into(), process, requests, answers })
    }

    /// What it answers to a line.
    pub fn ask(&mut self, request: &str) -> Result<String, BenchError> {
        // If it is gone, so is its answer, and why it went says more than a closed pipe.
        let _ = self.requests.write_all(format!("{request}\n").as_bytes());
        self.answer()
    }

    /// The next line of it.
    pub fn answer(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => {
                let reason = self.ended();
                Err(failed(&self.name, reason))
            }
            Ok(_) => Ok(line.trim_end().into()),
            Err(error) => Err(failed(&self.name, format!("cannot be understood: {error}"))),
        }
    }

    /// An answer that is not one.
    pub fn wrong(&self, line: &str, error: impl std::fmt::Display) -> BenchError {
        failed(&self.name, format!("answered {line:?}: {error}"))
    }

    /// How it ended: its answers have.
    fn ended(&mut self) -> String {
        match self.process.wait() {
            Ok(status) if out_of_memory(status) => format!("was killed ({status}); is there enough memory?"),
            Ok(status) => format!("ended early ({status})"),
            Err(error) => format!("ended early: {error}"),
        }
    }
}

/// Whether that is how a system gets memory back.
fn out_of_memory(status: ExitStatus) -> bool {
    #[cfg(unix)]
    return std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
    #[cfg(not(unix))]
    return false;
}

fn failed(name: &str, reason: String) -> BenchError {
    BenchError::Child { name: name.into(), reason }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// What a shell script says to one request.
    fn said(script: &str) -> String {
        let mut child = Child::start("it", Command::new("sh").args(["-c", script])).unwrap();
        child.ask("go").unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn how_it_ended_is_told() {
        assert_eq!(said("read line; echo $line on; read line"), "go on");
        assert_eq!(said("exit 3"), "the process that measures it ended early (exit status: 3)");
        let killed = said("kill -9 $$");
        assert!(killed.contains("SIGKILL") && killed.ends_with("is there enough memory?"), "{killed}");
        let aborted = said("kill -ABRT $$");
        assert!(aborted.contains("SIGABRT") && !aborted.contains("memory"), "{aborted}");
        let none = Child::start("it", &mut Command::new("/nowhere/python")).err().unwrap().to_string();
        assert!(none.contains("/nowhere/python: No such file"), "{none}");
    }
}
