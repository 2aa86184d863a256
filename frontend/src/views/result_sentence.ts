/** The sentence above the pictures and tables of an analysis. */

import type { AnalysisResult, Field, Findings, StoryLine } from '../api'
import type { MessageKey } from '../messages'
import type { Text } from '../messages/message'
import { formatNumber } from '../picture/scale'

/** The median of a field, the range of its values and the median of its null, if it has one. */
export interface FieldSummary { field: string; dims: string[]; middle: number; low: number; high: number; null: number | null }

const quantile = (sorted: Float32Array, fraction: number): number => sorted[Math.round((sorted.length - 1) * fraction)]!
const finiteValues = ({ values }: Field): Float32Array => values.filter(Number.isFinite).sort()
const isSummarised = (result: AnalysisResult, name: string): boolean => !/_(null|sd|low|high)$/.test(name) && finiteValues(result.arrays[name]!).length > 0

/** The first field that is compared with a null, else the first one with numbers. */
export function summariseMainField(result: AnalysisResult): FieldSummary | null {
  const names = Object.keys(result.fields).filter((name) => result.arrays[name] && isSummarised(result, name))
  const nullOf = (name: string): Field | undefined => result.arrays[result.fields[name]!.null ?? '']
  const field = names.find((name) => nullOf(name) && finiteValues(nullOf(name)!).length) ?? names[0]
  if (field === undefined) return null
  const [values, nullField] = [finiteValues(result.arrays[field]!), nullOf(field)]
  return { field, dims: result.arrays[field]!.dims, middle: quantile(values, 0.5), low: values[0]!, high: values.at(-1)!, null: nullField ? quantile(finiteValues(nullField), 0.5) : null }
}

interface Translator { message(key: MessageKey, parameters?: Record<string, string>): string; render(text: Text): string; displayName(name: Text): string }

/** A significant finding of the analysis, else its line of the story, else the summary of its main field. */
export function resultSentence(result: AnalysisResult, texts: Translator, findings: Findings | null, story: Record<string, StoryLine>): string {
  const finding = findings?.findings.find(({ analysis }) => analysis === result.name)
  if (finding) return texts.render(finding.text)
  const line = Object.values(story).find(({ deeper }) => deeper.includes(`analyse ${result.name}`))
  if (line) return texts.message('titled_sentence', { title: texts.render(line.title), sentence: texts.render(line.sentence) })
  const summary = summariseMainField(result)
  if (!summary) return ''
  const parameters = { field: texts.displayName(summary.field), axes: summary.dims.map(texts.displayName).join(' × '), value: formatNumber(summary.middle), low: formatNumber(summary.low), high: formatNumber(summary.high), null: formatNumber(summary.null ?? NaN) }
  const isRange = summary.high > summary.low // a single text has one value, although its field has a dimension
  const [plain, withNull] = isRange ? ['summary_median', 'summary_median_null'] as const : ['summary_value', 'summary_value_null'] as const
  return texts.message(summary.null === null ? plain : withNull, parameters)
}
