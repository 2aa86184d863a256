/** The sentence above the pictures and tables of an analysis. */

import type { AnalysisResult, Findings, StoryLine } from '../api'
import type { MessageKey } from '../messages'
import type { Text } from '../messages/message'

interface Translator { message(key: MessageKey, parameters?: Record<string, string>): string; render(text: Text): string }

/** A significant finding of the analysis, else its line of the story, else the sentence of its result. */
export function resultSentence(result: AnalysisResult, texts: Translator, findings: Findings | null, story: Record<string, StoryLine>): string {
  const finding = findings?.findings.find(({ analysis }) => analysis === result.name)
  if (finding) return texts.render(finding.text)
  const line = Object.values(story).find(({ deeper }) => deeper.includes(`analyse ${result.name}`))
  if (line) return texts.message('titled_sentence', { title: texts.render(line.title), sentence: texts.render(line.sentence) })
  return texts.render(result.sentence)
}
