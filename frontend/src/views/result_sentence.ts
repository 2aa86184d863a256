/** The sentence above the pictures and tables of an analysis. */

import type { AnalysisResult, Findings, StoryLine } from '../api'
import type { MessageKey } from '../messages'
import type { Text } from '../messages/message'

interface Translator { message(key: MessageKey, parameters?: Record<string, string>): string; render(text: Text): string }

/** A significant finding of the analysis, else the sentence of its result, else its line of the story, which may describe another head. */
export function resultSentence(result: AnalysisResult, texts: Translator, findings: Findings | null, story: Record<string, StoryLine>): string {
  const finding = findings?.findings.find(({ analysis }) => analysis === result.name)
  if (finding) return texts.render(finding.text)
  if (result.sentence) return texts.render(result.sentence)
  const line = Object.values(story).find(({ deeper }) => deeper.includes(`analyse ${result.name}`))
  return line ? texts.message('titled_sentence', { title: texts.render(line.title), sentence: texts.render(line.sentence) }) : ''
}
