import { en, type Key, type Messages } from './en'
import { Tongue } from './tongue'
import { zh, zhSaid } from './zh'

export type { Key, Messages }
/** `name` as its speakers write it, `lang` for the browser, `page` what the page says, `said` what the server says in English. */
export interface Language { name: string; lang: string; page: Messages; said: Tongue }
export const LANGUAGES: Record<string, Language> = {
  en: { name: 'EN', lang: 'en', page: en, said: new Tongue({}) },
  zh: { name: '中文', lang: 'zh-Hans', page: zh, said: new Tongue(zhSaid) },
}

/** A message with its gaps filled. */
export function said(messages: Messages, key: Key, filled: Record<string, string | number> = {}): string {
  return messages[key].replace(/\{(\w+)\}/g, (gap, name: string) => (name in filled ? String(filled[name]) : gap))
}
