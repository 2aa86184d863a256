import { en, type Key, type Messages } from './en'
import { zh } from './zh'

export type { Key, Messages }
export const LANGUAGES: Record<string, Messages> = { en, zh }

export const knows = (key: string): key is Key => key in en

/** A message with its gaps filled. */
export function said(messages: Messages, key: Key, filled: Record<string, string | number> = {}): string {
  return messages[key].replace(/\{(\w+)\}/g, (gap, name: string) => (name in filled ? String(filled[name]) : gap))
}
