//! Checklists of agents that keep them in task tools instead of plan updates (runtimes 11, "Plans").
//!
//! The calls of a few well-known tools are followed, merged per call id and applied when they complete. The stored
//! line then carries the whole checklist in `_meta.managoat_acp.plan`, or null while its call runs, so that a reader
//! of one line needs no history. A native plan ends this for the session: the agent says itself what its plan is. A
//! result that cannot be read changes nothing and its line stays an ordinary tool line.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Calls followed at once. An agent that opens more without closing any is not keeping a checklist.
const OPEN_CALLS: usize = 64;
/// Longest checklist.
const ENTRIES: usize = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    TaskCreate,
    TaskUpdate,
    TaskList,
    TaskGet,
    TodoWrite,
    UpdatePlan,
}

impl Tool {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "TaskCreate" => Self::TaskCreate,
            "TaskUpdate" => Self::TaskUpdate,
            "TaskList" => Self::TaskList,
            "TaskGet" => Self::TaskGet,
            "TodoWrite" => Self::TodoWrite,
            "update_plan" => Self::UpdatePlan,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone)]
struct OpenCall {
    tool: Tool,
    input: Map<String, Value>,
    response: Option<Value>,
}

/// The checklist of one session.
#[derive(Debug, Default)]
pub(super) struct Plans {
    native: bool,
    calls: BTreeMap<String, OpenCall>,
    entries: Vec<Value>,
}

impl Plans {
    /// Follows one `session/update`. Returns the line to store when it has to carry an annotation.
    pub fn annotate(&mut self, mut message: Value) -> Option<Value> {
        let update = message.pointer("/params/update")?;
        let kind = update.get("sessionUpdate")?.as_str()?;
        match kind {
            "plan" => self.native = true,
            "tool_call" | "tool_call_update" if !self.native => {
                let plan = self.follow(update)?;
                let update = message.pointer_mut("/params/update")?.as_object_mut()?;
                let meta = update.entry("_meta").or_insert_with(|| json!({})).as_object_mut()?;
                meta.insert("managoat_acp".into(), json!({"plan": plan}));
                return Some(message);
            }
            _ => {}
        }
        None
    }

    fn follow(&mut self, update: &Value) -> Option<Value> {
        let id = update.get("toolCallId")?.as_str()?;
        if !self.calls.contains_key(id) {
            let tool = tool_of(update)?;
            if self.calls.len() >= OPEN_CALLS {
                return None;
            }
            self.calls.insert(
                id.to_owned(),
                OpenCall {
                    tool,
                    input: Map::new(),
                    response: None,
                },
            );
        }
        let call = self.calls.get_mut(id)?;
        if let Some(Value::Object(input)) = update.get("rawInput") {
            call.input.extend(input.clone());
        }
        let response = update
            .pointer("/_meta/claudeCode/toolResponse")
            .or_else(|| update.get("rawOutput"));
        if let Some(response) = response.filter(|response| response.is_object()) {
            call.response = Some(response.clone());
        }
        match update.get("status").and_then(Value::as_str) {
            Some("completed") => {
                let call = self.calls.remove(id)?;
                self.apply(&call)?;
                Some(Value::Array(self.entries.clone()))
            }
            Some("failed" | "cancelled") => {
                self.calls.remove(id);
                None
            }
            _ => Some(Value::Null),
        }
    }

    /// `None`: the call says nothing that can be read, and nothing was changed.
    fn apply(&mut self, call: &OpenCall) -> Option<()> {
        let response = call.response.as_ref();
        match call.tool {
            Tool::TodoWrite => self.entries = list(call.input.get("todos")?)?,
            Tool::UpdatePlan => self.entries = list(call.input.get("plan")?)?,
            Tool::TaskList => self.entries = list(response?.get("tasks")?)?,
            Tool::TaskCreate => {
                let task = response?.get("task")?;
                let mut merged = call.input.clone();
                merged.extend(task.as_object()?.clone());
                self.put(entry(&Value::Object(merged))?)?;
            }
            Tool::TaskGet => self.put(entry(response?.get("task")?)?)?,
            Tool::TaskUpdate => {
                let id = text(call.input.get("taskId")?)?;
                let at = self
                    .entries
                    .iter()
                    .position(|entry| entry.get("id").and_then(text).as_ref() == Some(&id))?;
                if call.input.get("status").and_then(Value::as_str) == Some("deleted") {
                    self.entries.remove(at);
                    return Some(());
                }
                let known = self.entries.get_mut(at)?.as_object_mut()?;
                if let Some(content) = call.input.get("subject").filter(|subject| subject.is_string()) {
                    known.insert("content".into(), content.clone());
                }
                for key in ["status", "activeForm"] {
                    if let Some(value) = call.input.get(key).filter(|value| value.is_string()) {
                        known.insert(key.into(), value.clone());
                    }
                }
            }
        }
        Some(())
    }

    fn put(&mut self, new: Value) -> Option<()> {
        let id = new.get("id").cloned()?;
        let is_full = self.entries.len() >= ENTRIES;
        match self.entries.iter_mut().find(|entry| entry.get("id") == Some(&id)) {
            Some(entry) => *entry = new,
            None if is_full => return None,
            None => self.entries.push(new),
        }
        Some(())
    }
}

fn tool_of(update: &Value) -> Option<Tool> {
    let named = update.pointer("/_meta/claudeCode/toolName");
    [named, update.get("name"), update.get("title")]
        .into_iter()
        .flatten()
        .find_map(|name| Tool::of(name.as_str()?))
}

fn list(from: &Value) -> Option<Vec<Value>> {
    from.as_array()?.iter().take(ENTRIES).map(entry).collect()
}

fn entry(from: &Value) -> Option<Value> {
    let content = ["content", "subject", "step"]
        .into_iter()
        .find_map(|key| from.get(key)?.as_str())?;
    let status = from.get("status").and_then(Value::as_str).unwrap_or("pending");
    let mut entry = Map::from_iter([
        ("content".to_owned(), content.into()),
        ("status".to_owned(), status.into()),
    ]);
    if let Some(priority) = from.get("priority").filter(|priority| priority.is_string()) {
        entry.insert("priority".into(), priority.clone());
    }
    if let Some(id) = from.get("id").and_then(text) {
        entry.insert("id".into(), id.into());
    }
    if let Some(form) = from.get("activeForm").filter(|form| form.is_string()) {
        entry.insert("activeForm".into(), form.clone());
    }
    Some(Value::Object(entry))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(update: Value) -> Value {
        json!({"method": "session/update", "params": {"sessionId": "s", "update": update}})
    }

    fn plan_of(message: Option<Value>) -> Option<Value> {
        message.map(|message| message["params"]["update"]["_meta"]["managoat_acp"]["plan"].clone())
    }

    #[test]
    fn a_todo_list_is_hidden_while_its_call_runs_and_shown_when_it_completes() {
        let mut plans = Plans::default();
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "x",
            "_meta": {"claudeCode": {"toolName": "TodoWrite"}}, "rawInput": {}});
        assert_eq!(plan_of(plans.annotate(update(call))), Some(Value::Null));
        let todos = json!([{"content": "a", "status": "in_progress", "activeForm": "doing a"}]);
        let input = json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "rawInput": {"todos": todos}});
        assert_eq!(plan_of(plans.annotate(update(input))), Some(Value::Null));
        let done = json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed"});
        assert_eq!(plan_of(plans.annotate(update(done))), Some(todos));
    }

    #[test]
    fn tasks_are_created_updated_and_deleted_by_id() {
        let mut plans = Plans::default();
        let mut run = |id: &str, name: &str, input: Value, response: Value| {
            plan_of(plans.annotate(update(
                json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "name": name,
                "rawInput": input, "status": "completed", "_meta": {"claudeCode": {"toolResponse": response}}}),
            )))
        };
        let created = run(
            "1",
            "TaskCreate",
            json!({"subject": "a", "activeForm": "doing"}),
            json!({"task": {"id": "7", "subject": "a"}}),
        );
        let one = json!([{"content": "a", "status": "pending", "id": "7", "activeForm": "doing"}]);
        assert_eq!(created, Some(one));
        let updated = run(
            "2",
            "TaskUpdate",
            json!({"taskId": 7, "status": "completed"}),
            json!({}),
        );
        assert_eq!(updated.unwrap()[0]["status"], "completed");
        assert_eq!(
            run(
                "3",
                "TaskUpdate",
                json!({"taskId": "8", "status": "completed"}),
                json!({})
            ),
            None,
            "unknown task"
        );
        assert_eq!(
            run(
                "4",
                "TaskUpdate",
                json!({"taskId": "7", "status": "deleted"}),
                json!({})
            ),
            Some(json!([]))
        );
        assert_eq!(
            run("5", "TaskList", json!({}), json!({"tasks": "?"})),
            None,
            "unreadable: stays visible"
        );
    }

    #[test]
    fn a_native_plan_ends_the_following() {
        let mut plans = Plans::default();
        assert_eq!(
            plans.annotate(update(json!({"sessionUpdate": "plan", "entries": []}))),
            None
        );
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "TodoWrite"});
        assert_eq!(plans.annotate(update(call)), None);
    }

    #[test]
    fn other_tools_are_left_alone() {
        let mut plans = Plans::default();
        assert_eq!(
            plans.annotate(update(
                json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Bash"})
            )),
            None
        );
        assert_eq!(
            plans.annotate(update(
                json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed"})
            )),
            None
        );
    }
}
