//! What is asked of the API itself: one answer serves all who ask at the time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Mutex as AsyncMutex;

/// A question that costs too much to be asked by each.
pub(crate) struct Question<Answer> {
    asking: AsyncMutex<()>,
    asked: Mutex<Asked<Answer>>,
}

/// How often the API was asked, and what it said last.
struct Asked<Answer> {
    times: u64,
    /// With the number of the question.
    answer: Option<(u64, Arc<Answer>)>,
}

impl<Answer> Default for Question<Answer> {
    fn default() -> Question<Answer> {
        Question { asking: AsyncMutex::default(), asked: Mutex::new(Asked { times: 0, answer: None }) }
    }
}

impl<Answer> Question<Answer> {
    /// Asks. Whoever comes while it is asked waits, and is served by the next answer, which was asked for after it came.
    pub(crate) async fn ask<Error>(
        &self,
        api: impl Future<Output = Result<Answer, Error>>,
    ) -> Result<Arc<Answer>, Error> {
        let before = self.asked().times;
        let _turn = self.asking.lock().await;
        if let Some((number, answer)) = &self.asked().answer
            && *number > before
        {
            return Ok(Arc::clone(answer));
        }
        let number = {
            let mut asked = self.asked();
            asked.times += 1;
            asked.times
        };
        let answer = Arc::new(api.await?);
        self.asked().answer = Some((number, Arc::clone(&answer)));
        Ok(answer)
    }

    fn asked(&self) -> MutexGuard<'_, Asked<Answer>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn who_asks_meanwhile_is_served_by_the_next_answer_and_all_of_them_by_one() {
        let question: Question<u32> = Question::default();
        let times = Mutex::new(0);
        let ask = async |after: u64| {
            tokio::time::sleep(Duration::from_secs(after)).await;
            let api = async {
                *times.lock().unwrap() += 1;
                let number = *times.lock().unwrap();
                tokio::time::sleep(Duration::from_secs(10)).await;
                Ok::<_, ()>(number)
            };
            question.ask(api).await.map(|answer| *answer)
        };
        let answers = tokio::join!(ask(0), ask(1), ask(2), ask(100));
        assert_eq!(answers, (Ok(1), Ok(2), Ok(2), Ok(3)));
    }

    #[tokio::test]
    async fn a_question_that_was_not_answered_is_asked_again() {
        let question: Question<u32> = Question::default();
        let failed = question.ask(async { Err("away") }).await;
        let answered = question.ask(async { Ok::<_, &str>(7) }).await;
        assert_eq!((failed, answered), (Err("away"), Ok(Arc::new(7))));
    }
}
