/** Languages of the page. Each but English has a catalogue, which is loaded when the language is selected. */

import loadChinese from '../../../src/rheoscope/messages/zh.po'

import { en, type MessageKey } from './en'
import { ENGLISH, render, type Catalogue, type Parameter, type Text } from './message'

export type { MessageKey }
/** `name` in the language itself, `lang` as HTML names it. */
export interface Language { name: string; lang: string; load: () => Promise<Catalogue> }
export const LANGUAGES: Record<string, Language> = {
  en: { name: 'EN', lang: 'en', load: async () => ENGLISH },
  zh: { name: '中文', lang: 'zh-Hans', load: loadChinese },
}

/** A text of the page itself, which any language can show. */
export const pageMessage = (key: MessageKey, parameters: Record<string, Parameter> = {}): Text => ({ template: en[key], parameters })
/** A text of the page itself, in a language. */
export const pageText = (key: MessageKey, parameters: Record<string, Parameter>, catalogue: Catalogue): string =>
  render({ template: en[key], parameters }, catalogue)
